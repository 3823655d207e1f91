"""Java as the tests run it: most Sparks here live for seconds, which are spent on checking, compiling and collecting.

The last of these options spares the collections of everything by which Java finds that it loads twenty thousand classes.
"""

from __future__ import annotations

from typing import Final

OPTIONS: Final = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
    " -XX:ReservedCodeCacheSize=256m -XX:-UseCodeCacheFlushing -XX:MetaspaceSize=192m"
)
ENVIRONMENT: Final = {"JDK_JAVA_OPTIONS": OPTIONS}
"""For what a test starts."""
