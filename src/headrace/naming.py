"""Which key of the configuration an error is about: files and addresses fail far from where they were named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace.config import Config, InvalidKey
from headrace.journal.errors import JournalLocked, NotOurs
from headrace.net.tls import UnusableCertificate


@contextmanager
def keys_named(config: Config, otherwise: str) -> Iterator[None]:
    """Give errors the key of the file that they are about, or `otherwise`. Raises InvalidKey for a file that cannot be
    used, OSError for an address: another start may find it free."""
    try:
        yield
    except InvalidKey:
        raise
    except UnusableCertificate as error:
        message = error.reason if error.file.startswith("tls.") else str(error)
        raise InvalidKey(key_of_file(config, error.file, otherwise), message) from None
    except OSError as error:
        reason = error.strerror or str(error)
        key = key_of_file(config, str(error.filename), "") if error.filename else ""
        if key:
            key = key_of_file(config, str(error.filename), otherwise)
            raise InvalidKey(key, f"{error.filename}: {reason}") from None
        where = f"{error.filename}: " if error.filename else ""
        raise OSError(error.errno, f"{otherwise}: {where}{reason}") from None
    except (JournalLocked, NotOurs) as error:
        raise type(error)(f"data_dir: {error}") from None


def key_of_file(config: Config, file: str, otherwise: str) -> str:
    """Return the key that names this file: `otherwise` if that does, or if no key does: an option of a listener's URL
    may."""
    access, tls = config.access, config.tls
    named = {
        "access.password_file": access.password_file,
        "access.acl_file": access.acl_file,
        "access.ban_file": access.ban_file,
        "tls.certificate": tls.certificate,
        "tls.key": tls.key,
        "tls.ca": tls.ca,
        "tls.crl": tls.crl,
    }
    if file in named:  # it is about the key itself
        return file
    found = [key for key, name in named.items() if name == file]
    return otherwise if otherwise in found or not found else found[0]
