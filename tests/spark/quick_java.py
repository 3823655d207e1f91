"""Java as the tests run it: most Sparks here live for seconds, which are spent on checking, compiling and collecting."""

from __future__ import annotations

from typing import Final

LONG_OPTIONS: Final = (
    "-XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
    " -XX:ReservedCodeCacheSize=256m -XX:-UseCodeCacheFlushing"
)
"""For what computes for many minutes: from the eighth on, the second compiler has earned its own time."""
OPTIONS: Final = f"-XX:TieredStopAtLevel=1 {LONG_OPTIONS}"
ENVIRONMENT: Final = {"JDK_JAVA_OPTIONS": OPTIONS}
"""For what a test starts."""
