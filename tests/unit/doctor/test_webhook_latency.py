"""Webhooks that slow down requests, or that cannot be called."""

from __future__ import annotations

from muster.api.finding import Severity
from muster.doctor.parts.webhooks import Webhook, Webhooks
from tests.unit.doctor.conftest import Found

NAME = "apiserver_admission_webhook_admission_duration_seconds"
LABELS = 'name="slow.example.com",operation="CREATE",rejected="false",type="validating"'
HOOK = Webhook(
    configuration_kind="ValidatingWebhookConfiguration",
    configuration="policies",
    index=2,
    name="slow.example.com",
    fails_closed=True,
    timeout_s=10,
)


def page(count: float, total_s: float, start: float = 1000.0) -> str:
    return f"process_start_time_seconds {start}\n{NAME}_sum{{{LABELS}}} {total_s}\n{NAME}_count{{{LABELS}}} {count}\n"


def test_slow_webhook_is_named_by_its_configuration(find: Found) -> None:
    (found,) = find((page(100, 1.0), page(104, 21.0)), parts=[Webhooks((HOOK,))])
    assert (found.id, found.severity) == ("webhook-slow", Severity.ERROR)
    assert [(who.kind, who.name) for who in found.who] == [("ValidatingWebhookConfiguration", "policies")]
    assert found.evidence[0].value == 5.0
    assert (found.costs[0].today, found.costs[0].planned) == (2.0, 20.0)
    assert "/webhooks/2/timeoutSeconds" in found.fix.commands[0]


def test_webhook_that_was_slow_before_the_window_is_not_reported(find: Found) -> None:
    assert find((page(100, 500.0), page(200, 501.0)), parts=[Webhooks((HOOK,))]) == []


def test_slow_webhook_is_named_by_itself_if_configurations_cannot_be_read(find: Found) -> None:
    (found,) = find((page(0, 0), page(2, 10.0)))
    assert [(who.kind, who.name) for who in found.who] == [("Webhook", "slow.example.com")]
    assert found.fix.commands == ()


def test_time_of_several_servers_adds_up(find: Found) -> None:
    (found,) = find((page(0, 0), page(2, 10.0)), (page(0, 0, 2000.0), page(2, 10.0, 2000.0)))
    assert found.costs[0].today == 2.0


REJECTED = "apiserver_admission_webhook_rejection_count"


def rejections(error: str, count: int) -> str:
    labels = f'name="slow.example.com",operation="CREATE",type="validating",error_type="{error}",rejection_code="0"'
    return (
        f"{REJECTED}{{{labels}}} {count}\n"
        f'apiserver_request_total{{verb="POST",resource="pods",group="",code="500"}} {count}\n'
        f'apiserver_request_total{{verb="POST",resource="pods",group="",code="201"}} {count}\n'
    )


def test_webhook_that_cannot_be_called_is_the_only_finding_about_its_errors(find: Found) -> None:
    (found,) = find((rejections("calling_webhook_error", 0), rejections("calling_webhook_error", 50)))
    assert (found.id, found.severity) == ("webhook-failing", Severity.ERROR)
    assert found.evidence[0].value == 5.0


def test_decision_of_a_webhook_is_not_a_failure(find: Found) -> None:
    assert [each.id for each in find((rejections("no_error", 0), rejections("no_error", 50)))] == ["server-errors"]


def test_webhook_that_fails_open_is_a_warning(find: Found) -> None:
    name = "apiserver_admission_webhook_fail_open_count"
    before, after = (f'{name}{{name="slow.example.com",type="validating"}} {count}\n' for count in (1, 3))
    (found,) = find((before, after))
    assert (found.id, found.severity) == ("webhook-failing", Severity.WARNING)
