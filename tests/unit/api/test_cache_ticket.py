"""Tickets of the node cache: only the controller's signature counts, and nothing in a ticket can be exchanged."""

from __future__ import annotations

import base64
import json

import pytest

from muster.api.cache_ticket import (
    CLOCK_SKEW_S,
    PUBLIC_KEYS_MAX,
    Peer,
    PeerList,
    Ticket,
    TicketRefused,
    TicketSigner,
    TicketVerifier,
    gang_key,
    key_digest,
    merged_public_keys,
)

NOW = 1_800_000_000
TICKET = Ticket(
    uid="6f9a", namespace="team-a", job="train", attempt=3, slot=7, expires=NOW + 60, key=key_digest("ab"), peers="cd"
)
SIGNER = TicketSigner(b"s" * 32)
VERIFIER = TicketVerifier(SIGNER.public_key)


def test_ticket_survives_the_journey():
    assert VERIFIER.verify(SIGNER.sign(TICKET), NOW) == TICKET


def test_each_leader_signs_with_the_same_key():
    assert TicketSigner(b"s" * 32).sign(TICKET) == SIGNER.sign(TICKET)


def test_ticket_of_another_cluster_is_refused():
    with pytest.raises(TicketRefused, match="signature"):
        VERIFIER.verify(TicketSigner(b"t" * 32).sign(TICKET), NOW)


@pytest.mark.slow
def test_changed_character_is_refused():
    text = SIGNER.sign(TICKET)
    for at, there in enumerate(text):
        for other in set("ABab01-_.=+/ ") - {there}:
            with pytest.raises(TicketRefused):
                VERIFIER.verify(text[:at] + other + text[at + 1 :], NOW)


@pytest.mark.parametrize(
    "text", ["", ".", "a.b", "é.é", "A" * 10_000, SIGNER.sign(TICKET) + "=", SIGNER.sign(TICKET) + "."]
)
def test_text_that_is_not_a_ticket_is_refused(text):
    with pytest.raises(TicketRefused):
        VERIFIER.verify(text, NOW)


def test_another_slots_ticket_with_this_signature_is_refused():
    mine, other = SIGNER.sign(TICKET), SIGNER.sign(Ticket(**{**_fields(), "slot": 8}))
    with pytest.raises(TicketRefused):
        VERIFIER.verify(other.partition(".")[0] + "." + mine.partition(".")[2], NOW)


def test_signature_of_a_newer_versions_ticket_names_the_version():
    payload = json.dumps({**_fields(), "color": "red"}, separators=(",", ":")).encode()
    with pytest.raises(TicketRefused, match="version"):
        VERIFIER.verify(_signed_text(payload), NOW)


def test_signed_content_in_another_form_is_refused():
    payload = json.dumps(_fields(), indent=1).encode()
    with pytest.raises(TicketRefused, match="canonical"):
        VERIFIER.verify(_signed_text(payload), NOW)


@pytest.mark.parametrize(("late_s", "valid"), [(0, True), (CLOCK_SKEW_S, True), (CLOCK_SKEW_S + 1, False)])
def test_clock_that_is_five_minutes_ahead_is_tolerated(late_s, valid):
    text = SIGNER.sign(TICKET)
    if valid:
        assert VERIFIER.verify(text, TICKET.expires + late_s) == TICKET
    else:
        with pytest.raises(TicketRefused, match="expired"):
            VERIFIER.verify(text, TICKET.expires + late_s)


def test_clock_that_is_behind_does_not_matter():
    assert VERIFIER.verify(SIGNER.sign(TICKET), NOW - 10 * 365 * 86400) == TICKET


def test_tickets_of_both_keys_are_accepted_after_the_secret_changed():
    new = TicketSigner(b"n" * 32)
    both = TicketVerifier(merged_public_keys(new.public_key, SIGNER.public_key + "\n"))
    assert both.verify(new.sign(TICKET), NOW) == both.verify(SIGNER.sign(TICKET), NOW) == TICKET


def test_second_rotation_drops_the_oldest_key():
    second, third = TicketSigner(b"2" * 32), TicketSigner(b"3" * 32)
    text = merged_public_keys(second.public_key, SIGNER.public_key)
    text = merged_public_keys(third.public_key, text)
    assert text.split() == [third.public_key, second.public_key]
    assert merged_public_keys(third.public_key, text) == text


def test_rotation_drops_a_line_that_is_not_a_key():
    assert merged_public_keys(SIGNER.public_key, "# note\ngarbage\n").split() == [SIGNER.public_key]


def test_comments_in_the_public_keys_are_ignored():
    assert TicketVerifier(f"# of the leader\n\n{SIGNER.public_key}\n").verify(SIGNER.sign(TICKET), NOW) == TICKET


@pytest.mark.parametrize("text", ["garbage", base64.b64encode(b"short").decode(), "\n".join([SIGNER.public_key] * 9)])
def test_malformed_public_keys_are_an_error(text):
    with pytest.raises(ValueError, match=r"ticket\.pub"):
        TicketVerifier(text)
    assert PUBLIC_KEYS_MAX < 9


def test_without_public_keys_each_ticket_is_refused():
    with pytest.raises(TicketRefused):
        TicketVerifier("").verify(SIGNER.sign(TICKET), NOW)


def test_gang_key_differs_from_the_attempt_key_and_between_attempts():
    first, second = "00" * 32, "01" + "00" * 31
    assert len({first, second, gang_key(first), gang_key(second), key_digest(gang_key(first))}) == 5


def test_peer_list_digest_depends_on_each_part():
    a, b = Peer(1, "10.0.0.1:7443"), Peer(2, "10.0.0.2:7443")
    lists = [
        PeerList(),
        PeerList(group=(a,)),
        PeerList(group=(a, b)),
        PeerList(group=(b, a)),
        PeerList(group=(a,), partner=b),
        PeerList(group=(a,), near=(b,)),
        PeerList(group=(Peer(1, "10.0.0.1:7444"),)),
    ]
    assert len({each.digest() for each in lists}) == len(lists)


def _fields():
    return {name: getattr(TICKET, name) for name in TICKET.__struct_fields__}


def _signed_text(payload):
    signature = SIGNER._key.sign(b"muster-cache-ticket/1\0" + payload)
    return ".".join(base64.urlsafe_b64encode(each).rstrip(b"=").decode() for each in (payload, signature))
