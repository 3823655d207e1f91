"""What stands behind the core's ports: `local` (the journal on this disk) and `memory` (the fake for tests)."""
