"""`headrace config check`: opens what the configuration names, as `serve` would, and says everything that is wrong.

Nothing is changed, made or listened on. `running` is for the configuration of a broker that runs: then its data directory
and its ports are taken, by it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from headrace.address import Location
from headrace.api.tokens import lines_without_grant
from headrace.bridge.address import parse as parse_remote
from headrace.bridge.settings import RemoteTls
from headrace.bridge.tls import UnusableFile, client_context
from headrace.config import BridgeConfig, Config, InvalidKey, endpoint
from headrace.data.layout import NAME as SHARDS
from headrace.data.layout import Layout, check_is_whole, is_new
from headrace.errors import ConfigError
from headrace.journal.disk import DISK
from headrace.journal.errors import JournalError, NoJournal
from headrace.journal.lock import NAME as LOCK
from headrace.journal.lock import check_access
from headrace.journal.reader import DIRECTORY as SEGMENTS
from headrace.journal.segment import SEGMENT_HEADER_SIZE, SUFFIX, SegmentHeader
from headrace.journal.watermark import read_state
from headrace.naming import key_of_file, keys_named
from headrace.net.address import Address, parse
from headrace.net.bound import allow_all_descriptors
from headrace.net.gate import read_bans
from headrace.net.tls import TlsFiles, revocations, server_context
from headrace.net.validity import complaints
from headrace.node.tenants import check
from headrace.node.wiring import door_settings, wish
from headrace.ownership import hidden_from
from headrace.services.acl import read_acl
from headrace.services.doors import connections_allowed
from headrace.services.passwords import read_hashes

_MARKS = {SEGMENTS, "watermark", LOCK, "reserve"}
_UNPRIVILEGED_PORT = 1024
_ANY = {"0.0.0.0", "::"}  # noqa: S104  whoever listens there listens at all addresses
# File systems that the kernel makes up: nobody can make a directory there, though root may write.
_MADE_UP = {
    "proc",
    "sysfs",
    "cgroup",
    "cgroup2",
    "devpts",
    "debugfs",
    "tracefs",
    "securityfs",
    "configfs",
    "bpf",
}
# What an address of such a scheme needs, and the extra that brings it.
_EXTRAS = {
    "redis": ("hiredis", "redis"),
    "rediss": ("hiredis", "redis"),
    "kafka": ("confluent_kafka", "kafka"),
    "hbase": ("thriftpy2", "hbase"),
}
_GRANT_LINE = "as it is not of the form [read|operate] [tenant=NAME] [consumer=NAME] TOKEN"


def problems(config: Config, running: bool = False) -> list[str]:
    """Return what is wrong with a configuration, a line each with its key in front."""
    steps = (
        _access,
        _directory,
        _extras,
        _certificates,
        _addresses,
        _data_dir,
        _workers,
        _limits,
        _tokens,
        _bridges,
        _service,
    )
    found = [line for step in steps for line in step(config, running)]
    return list(dict.fromkeys(found))


def _said(config: Config, otherwise: str, look: Callable[[], object]) -> Iterator[str]:
    """Yield what `look` raises, with the key of the setting."""
    try:
        with keys_named(config, otherwise):
            look()
    except ConfigError as error:
        text = str(error)
        yield text if isinstance(error, InvalidKey) or text.startswith(otherwise) else f"{otherwise}: {text}"
    except OSError as error:
        yield error.strerror or str(error)


def _access(config: Config, _: bool) -> Iterator[str]:
    access = config.access
    if access.password_file:
        yield from _said(config, "access.password_file", lambda: read_hashes(Path(access.password_file)))
    if access.acl_file:
        yield from _said(config, "access.acl_file", lambda: read_acl(Path(access.acl_file)))
    if access.ban_file:
        yield from _said(config, "access.ban_file", lambda: read_bans(Path(access.ban_file)))


def _directory(config: Config, _: bool) -> Iterator[str]:
    if config.tenants.enabled:
        yield from _said(config, "directory.url", lambda: check(config))


def _extras(config: Config, _: bool) -> Iterator[str]:
    """Say what an address needs that is not installed with this headrace."""
    queues = config.queues
    named = {
        "cluster": config.cluster,
        "queues.device": queues.device,
        "queues.application": queues.application,
    }
    named |= {f"queues.rules[{number}].store": rule.store for number, rule in enumerate(queues.rules)}
    for key, address in named.items():
        needed = _EXTRAS.get(address.partition("://")[0])
        if needed is not None and find_spec(needed[0]) is None:
            yield f"{key}: {needed[0]} is not installed: pip install 'headrace[{needed[1]}]'"


# Certificates


def _certificates(config: Config, _: bool) -> Iterator[str]:
    common = door_settings(config).tls
    for url in config.listeners:
        address = parse(url)
        if address.encrypted:
            yield from _tls(config, "listeners", common.overridden_by(address))
    if config.tls.certificate:
        yield from _tls(config, "tls.certificate", common)


def _tls(config: Config, otherwise: str, files: TlsFiles) -> Iterator[str]:
    def look() -> None:
        server_context(files, "mqtt")
        revocations(files)

    wrong = list(_said(config, otherwise, look))
    yield from wrong
    lists = files.client_certificate != "none"
    for file in (files.certificate, *([files.ca, files.crl] if lists else [])):
        if file and not wrong:
            key = key_of_file(config, file, otherwise)
            yield from (f"{key}: {file}: {complaint}" for complaint in complaints(Path(file)))


# Addresses


def _addresses(config: Config, running: bool) -> Iterator[str]:
    wanted: list[tuple[str, str, Address]] = [("listeners", url, parse(url)) for url in config.listeners]
    if config.admin:
        at = endpoint("admin", config.admin, "http", "https")
        wanted.append(("admin", config.admin, parse(f"tcp://{at.shown_host}:{at.port}")))
    taken: dict[object, str] = {}
    for key, url, address in wanted:
        if address.scheme == "unix":
            yield from _folder_of_socket(key, url, Path(address.path))
            continue
        try:
            found = socket.getaddrinfo(
                address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            family, _, _, _, name = found[0]
        except OSError as error:
            yield f"{key}: {url}: {error.strerror or error}"
            continue
        if address.port and name in taken:
            yield f"{key}: {url}: {taken[name]} is the same address"
        else:
            taken[name] = url
            yield from _bound(key, url, family, name, running)


def _bound(key: str, url: str, family: int, name: object, running: bool) -> Iterator[str]:
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(name)  # type: ignore[arg-type]
        except OSError as error:
            if running and error.errno == errno.EADDRINUSE:
                return
            hint = f" (a port below {_UNPRIVILEGED_PORT})" if error.errno == errno.EACCES else ""
            yield f"{key}: {url}: {error.strerror}{hint}"


def _folder_of_socket(key: str, url: str, path: Path) -> Iterator[str]:
    if not path.parent.is_dir():
        yield f"{key}: {url}: there is no directory {path.parent}"
    elif path.exists() and not path.is_socket():
        yield f"{key}: {url}: is there and no socket"
    elif not os.access(path.parent, os.W_OK | os.X_OK):
        yield f"{key}: {url}: {path.parent} is not writable"


# Data


def _data_dir(config: Config, running: bool) -> Iterator[str]:
    path = Path(config.data_dir)
    if not path.is_dir():
        yield from _could_be_made(path)
        return
    names = set(os.listdir(path)) if os.access(path, os.R_OK) else set()
    if SHARDS in names:
        yield from _shards(path, running)
        return
    if names - {"lost+found"} and not names & _MARKS:
        yield f"data_dir: {path} holds other files and no journal: {sorted(names)[0]}"
    try:
        check_access(DISK, path)
        _check_formats(path)
        if not running and LOCK in names:
            yield from _in_use(path)
    except JournalError as error:
        yield f"data_dir: {error}"
    except OSError as error:
        yield f"data_dir: {error.filename or path}: {error.strerror}"


def _workers(config: Config, _: bool) -> Iterator[str]:
    """Look whether the data directory has, or may get, as many shards and workers as are asked for."""
    path = Path(config.data_dir)
    try:
        check_is_whole(path)
        if is_new(path):
            wish(config).of_new()
        else:
            wish(config).of(Layout.open(path))
    except ConfigError as error:
        yield str(error)
    except OSError:
        return  # which `_data_dir` says


def _shards(path: Path, running: bool) -> Iterator[str]:
    """Look at a data directory of several shards, and at each of them."""
    try:
        layout = Layout.open(path)
        check_access(DISK, path)
        for directory in layout.directories():
            check_access(DISK, directory)
            _check_formats(directory)
        if not running and (path / LOCK).exists():
            yield from _in_use(path)
    except ConfigError as error:
        yield str(error)
    except JournalError as error:
        yield f"data_dir: {error}"
    except OSError as error:
        yield f"data_dir: {error.filename or path}: {error.strerror}"


def _could_be_made(path: Path) -> Iterator[str]:
    above = path.absolute()
    while not os.path.lexists(above):
        above = above.parent
    kind = _file_system(above)
    if not above.is_dir():
        yield f"data_dir: {above} is no directory"
    elif kind in _MADE_UP:
        yield f"data_dir: {path} is not there, and {kind} at {above} keeps no files"
    elif not os.access(above, os.W_OK | os.X_OK):
        yield f"data_dir: {path} is not there, and {above} is not writable"


def _file_system(path: Path) -> str:
    """Return the type of the file system that holds a path, "" where the system does not tell."""
    found, longest = "", Path()
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            words, _, type_and_more = line.partition(" - ")
            mount = Path(re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), words.split()[4]))
            if len(mount.parts) >= len(longest.parts) and path.resolve().is_relative_to(mount):
                found, longest = type_and_more.split()[0], mount
    return found


def _check_formats(data_dir: Path) -> None:
    """Check the formats of a data directory. Raises JournalError for what no version up to this one has written,
    OSError."""
    for segment in sorted((data_dir / SEGMENTS).glob(f"*{SUFFIX}")):
        with segment.open("rb") as file:
            SegmentHeader.unpack(file.read(SEGMENT_HEADER_SIZE), str(segment))
    try:
        read_state(DISK, data_dir)
    except NoJournal:
        return  # of a broker that never came to its first record


def _in_use(data_dir: Path) -> Iterator[str]:
    fd = os.open(data_dir / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
        yield (
            f"data_dir: another process (pid {pid}) has {data_dir} open; with --running its data and ports are left out"
        )
    finally:
        os.close(fd)


# The rest


def _limits(config: Config, _: bool) -> Iterator[str]:
    wanted = config.limits.connections_max
    yield from _said(config, "limits", lambda: connections_allowed(wanted, allow_all_descriptors()))


def _tokens(config: Config, _: bool) -> Iterator[str]:
    file = config.journal.token_file
    if file:
        unread = list(_readable("journal.token_file", file))
        yield from _secret("journal.token_file", file)
        for number in [] if unread else lines_without_grant(Path(file).read_text(encoding="utf-8")):
            yield f"journal.token_file: {file}, line {number}: grants nothing, {_GRANT_LINE}"


def _secret(key: str, file: str) -> Iterator[str]:
    """Look at a file that should be read by the broker alone."""
    wrong = list(_readable(key, file))
    yield from wrong
    if not wrong and Path(file).stat().st_mode & stat.S_IROTH:
        yield f"{key}: {file}: everybody on this machine may read it (chmod o-rwx)"


def _readable(key: str, file: str) -> Iterator[str]:
    try:
        Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        yield f"{key}: {file}: {getattr(error, 'strerror', None) or 'not UTF-8'}"


def _service(config: Config, _: bool) -> Iterator[str]:
    """Look, as root, whether the user to whom the data directory belongs could read what the configuration names."""
    data_dir = Path(config.data_dir)
    owner = data_dir.stat() if data_dir.is_dir() else None
    if os.geteuid() or owner is None or not owner.st_uid:
        return
    for key, file in _named_files(config):
        try:
            hidden = hidden_from(owner.st_uid, owner.st_gid, Path(file))
        except OSError:
            continue  # which is said already
        if hidden is not None:
            yield (
                f"{key}: {file}: user {owner.st_uid}, to whom {data_dir} belongs, may not read {hidden}: "
                f"chgrp {owner.st_gid} {hidden} && chmod g+{'rx' if hidden.is_dir() else 'r'} {hidden}"
            )


def _named_files(config: Config) -> Iterator[tuple[str, str]]:
    """Yield every file that the broker reads, with the key that names it."""
    access, tls = config.access, config.tls
    found = [(f"access.{name}", getattr(access, name)) for name in ("password_file", "acl_file", "ban_file")]
    found += [(f"tls.{name}", getattr(tls, name)) for name in ("certificate", "key", "ca", "crl")]
    found.append(("journal.token_file", config.journal.token_file))
    for url in config.listeners:
        options = parse(url).options
        found += [("listeners", file) for file in (options.cert, options.key, options.ca, options.crl)]
    for index, bridge in enumerate(config.bridge):
        key = f"bridge[{index}]"
        found.append((f"{key}.password_file", bridge.password_file))
        found += [(f"{key}.tls.{name}", getattr(bridge.tls, name)) for name in ("ca", "certificate", "key")]
    yield from ((key, file) for key, file in found if file)


def _bridges(config: Config, _: bool) -> Iterator[str]:
    listeners = [parse(url) for url in config.listeners]
    for index, bridge in enumerate(config.bridge):
        yield from _bridge(f"bridge[{index}]", bridge, listeners)


def _bridge(key: str, bridge: BridgeConfig, listeners: Sequence[Address]) -> Iterator[str]:
    if bridge.password_file:
        yield from _secret(f"{key}.password_file", bridge.password_file)
    tls = bridge.tls
    files = {"ca": tls.ca, "certificate": tls.certificate, "key": tls.key}
    missing = [line for name, file in files.items() if file for line in _readable(f"{key}.tls.{name}", file)]
    yield from missing
    if not missing:
        try:
            client_context(RemoteTls(tls.ca, tls.certificate, tls.key, tls.insecure))
        except UnusableFile as error:
            yield f"{key}.tls: {error}"
        for name in ("ca", "certificate"):
            if files[name]:
                found = complaints(Path(files[name]))
                yield from (f"{key}.tls.{name}: {files[name]}: {complaint}" for complaint in found)
    for url in bridge.addresses:
        remote = parse_remote(url)
        try:
            own = [listener for listener in listeners if _leads_to(remote, listener)]
        except OSError as error:
            yield f"{key}.addresses: {url}: {error.strerror or error}"
            continue
        if own:
            yield f"{key}.addresses: {url}: is our own listener {own[0]}: each message would come back"


def _leads_to(remote: Location, listener: Location) -> bool:
    """Return whether a connection to this address comes to that listener of ours. Raises OSError for an address that
    cannot be resolved."""
    if not remote.host:
        return listener.scheme == "unix" and Path(remote.path).resolve() == Path(listener.path).resolve()
    there = _hosts(remote)
    if not listener.host or listener.port != remote.port:
        return False
    here = _hosts(listener)
    return bool(here & there) or (bool(here & _ANY) and any(map(_is_local, there)))


def _hosts(at: Location) -> set[str]:
    """Return the numeric addresses of a host. Raises OSError."""
    return {str(found[4][0]) for found in socket.getaddrinfo(at.host, at.port, type=socket.SOCK_STREAM)}


def _is_local(host: str) -> bool:
    """Return whether an address is one of this machine: only such a one can be bound."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError:
            return False
        return True
