"""Raw netlink: messages to the kernel without a library, whose objects cost more than the call."""
