"""Links: bytes on one side, the verbs of `core.ports.link` on the other, in the protocol that its client speaks."""
