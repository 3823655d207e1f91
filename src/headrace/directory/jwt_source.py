"""Where the keys of tokens come from: a file or a URL, read again now and then.

A thread of its own reads them, since a URL may take long; whoever verifies a token takes those that were read last. What
cannot be read, or used, leaves the keys that were there.
"""

from __future__ import annotations

import http.client
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Final

from headrace.directory.jwt_keys import UnusableKeys, VerifyingKey, keys_of, pass_over

BYTES_MAX: Final = 1 << 20
TIMEOUT_S: Final = 10.0
AGAIN_S: Final = 10.0  # at least between two reads, however many tokens name keys that are not there


class _Straight(urllib.request.HTTPRedirectHandler):
    """Follows nobody elsewhere: keys come from where the operator said."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None


class KeySource:
    """The keys of a JWK Set. `told` hears, on the thread that reads, of the first read that fails, with words, and of the
    first that goes well again, with None; `left_out` of keys that cannot be used, when others are."""

    def __init__(
        self,
        where: str,
        refresh_s: float,
        told: Callable[[str | None], object],
        clock: Callable[[], float] = time.monotonic,
        left_out: Callable[[str], object] = pass_over,
    ) -> None:
        self.keys: tuple[VerifyingKey, ...] = ()
        self._where = where
        self._refresh_s = refresh_s
        self._told = told
        self._clock = clock
        self._failed = False
        self._left_out = left_out
        self._odd: list[str] = []  # keys, with what is wrong with each
        self._read_at = -AGAIN_S
        self._good_at = -AGAIN_S  # when the keys that are there were read
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="jwks", daemon=True)

    @property
    def is_url(self) -> bool:
        return self._where.startswith(("https://", "http://"))

    def open(self) -> None:
        """Read the keys, and go on reading them. A URL that does not answer is told of, and asked again. Raises
        UnusableKeys for a file that cannot be read or used."""
        if not self.is_url:
            self.load()
        self._thread.start()

    def load(self) -> None:
        """Read the keys now. Raises UnusableKeys."""
        self._read_at = self._clock()
        self._take()

    def are_fresh(self) -> bool:
        """Return whether the keys are what was there just now: others need not be looked for."""
        return bool(self.keys) and self._clock() - self._good_at < AGAIN_S

    def close(self) -> None:
        """Read nothing any more."""
        self._closed = True
        self._wake.set()

    def look_again(self) -> None:
        """Have the keys read again soon: a token names one that is not among them."""
        self._wake.set()

    def read(self) -> None:
        """Read the keys, and tell of what has become of that."""
        self._read_at = self._clock()
        try:
            self._take()
        except Exception as error:  # noqa: BLE001  as no memory: it passes, and the thread reads on
            if not self._failed:
                self._told(str(error) or type(error).__name__)
            self._failed = True
            return
        if self._failed:
            self._told(None)
        self._failed = False

    def _run(self) -> None:
        while not self._closed:
            rest_s = AGAIN_S - (self._clock() - self._read_at)
            if rest_s <= 0:
                self._wake.clear()
                self.read()
                self._wake.wait(AGAIN_S if self._failed else self._refresh_s)
            elif not self._closed:
                time.sleep(min(rest_s, 1.0))

    def _take(self) -> None:
        """Read the keys, and tell of those that are left out. Raises UnusableKeys."""
        odd, began = list[str](), self._clock()
        self.keys = keys_of(self._text(), odd.append)
        self._good_at = began
        if odd != self._odd:
            self._odd = odd
            for one in odd:
                self._left_out(one)

    def _text(self) -> bytes:
        """Return the text of the JWK Set. Raises UnusableKeys."""
        try:
            if not self.is_url:
                return Path(self._where).read_bytes()
            opener = urllib.request.build_opener(_Straight)
            with opener.open(self._where, timeout=TIMEOUT_S) as answer:
                text: bytes = answer.read(BYTES_MAX + 1)
        except (OSError, ValueError, http.client.HTTPException) as error:  # of urllib too
            raise UnusableKeys(f"it cannot be read: {error}") from None
        if len(text) > BYTES_MAX:
            raise UnusableKeys(f"it is larger than {BYTES_MAX} bytes")
        return text
