"""Options of Mosquitto (up to 2.1) that have no counterpart and keep nobody out (those that do: `closing`), and why: said
for every line that names one."""

from __future__ import annotations

_SERVICE = "the service manager's affair (docs: run as a service)"
_DISK = "an acknowledged message is on the disk, whatever the interval"
_PLUGIN = "headrace has no plugins; users and rights come from password and ACL files"
_PSK = "only listeners with a psk_hint ask for these keys"
_CIPHERS = "OpenSSL's choice of ciphers for TLS 1.2 and 1.3 stands"
_ENGINE = "headrace loads no OpenSSL engines or providers; keys are PEM files"
_LOG = "the log goes to stderr, for the service manager; log.format says text or json"
_BRIDGE = "bridges have no such option"
_PACKET = "limits.packet_bytes_max is for packets of every kind"
_SOCKET = "the system's choice stands"

WITHOUT = {
    "allow_duplicate_messages": "one message for each subscription or one for all is MQTT's matter",
    "auth_plugin_deny_special_chars": _PLUGIN,
    "auto_id_prefix": "client ids that the broker makes have no prefix",
    "autosave_interval": _DISK,
    "autosave_on_changes": _DISK,
    "bridge_alpn": _BRIDGE,
    "bridge_attempt_unsubscribe": "a bridge subscribes to what its topics say, no less and no more",
    "bridge_bind_address": _BRIDGE,
    "bridge_ciphers": _CIPHERS,
    "bridge_ciphers_tls1.3": _CIPHERS,
    "bridge_dhparamfile": _CIPHERS,
    "bridge_max_topic_alias": _BRIDGE,
    "bridge_outgoing_retain": "retained messages keep their flag over a bridge",
    "bridge_reload_type": "a bridge's settings change with a start",
    "bridge_tcp_keepalive": "limits.tcp_keep_alive_s is for all sockets",
    "bridge_tcp_user_timeout": _SOCKET,
    "bridge_tls_version": "bridges use TLS 1.2 or 1.3, the highest that both sides have",
    "check_retain_source": "a retained message stays although its publisher's right was withdrawn",
    "ciphers": _CIPHERS,
    "ciphers_tls1.3": _CIPHERS,
    "connection_messages": "log.level: connections are told at info",
    "dhparamfile": _CIPHERS,
    "disable_client_cert_date_checks": "certificates that have expired are refused",
    "enable_control_api": "there is no $CONTROL",
    "global_max_clients": "limits.connections_max bounds connections, sessions end by their expiry",
    "global_max_connections": "limits.connections_max is what max_connections sets",
    "http_dir": "a broker serves no files",
    "idle_timeout": "bridges stay connected",
    "include_dir": "only the main file may include",
    "keyform": _ENGINE,
    "listener_auto_id_prefix": "client ids that the broker makes have no prefix",
    "local_cleansession": "the broker's own side of a bridge keeps everything",
    "local_clientid": "the session of a bridge is $bridge/NAME",
    "local_password": "a bridge needs no rights of its own",
    "local_username": "a bridge needs no rights of its own",
    "log_dest": _LOG,
    "log_facility": _LOG,
    "log_timestamp": "every line of the log has its time, in UTC",
    "log_timestamp_format": "every line of the log has its time, in UTC",
    "max_inflight_bytes": "session.inflight_max counts messages",
    "max_qos": "every listener takes QoS 0, 1 and 2",
    "memory_limit": "queues are on the disk; limit the memory of the service",
    "packet_buffer_size": _SOCKET,
    "packet_max_auth": _PACKET,
    "packet_max_connect": _PACKET,
    "packet_max_simple": _PACKET,
    "packet_max_un_subscribe": _PACKET,
    "persistence_file": "the journal is a folder of files",
    "pid_file": _SERVICE,
    "psk_file": _PSK,
    "queue_qos0_messages": "QoS 0 is not kept for clients that are away",
    "retain_available": "retained messages are always there; forbid them in the ACL, or limits.retained_messages_max",
    "retain_expiry_interval": "publishers of MQTT 5 give a retained message its expiry; session.default_message_expiry_s",
    "round_robin": "the first address that answers is taken, from the first on at every attempt",
    "start_type": "bridges start with the broker and stay",
    "threshold": "bridges stay connected",
    "tls_engine": _ENGINE,
    "tls_engine_kpass_sha1": _ENGINE,
    "tls_keyform": _ENGINE,
    "tls_keylog": "session keys are not written down",
    "upgrade_outgoing_qos": "the lower QoS of publisher and subscription counts, as MQTT has it",
    "user": _SERVICE,
    "websockets_headers_size": "a request for the upgrade has 16 KiB",
    "websockets_log_level": _LOG,
}
PREFIXES = {"auth_opt_": _PLUGIN, "plugin_opt_": _PLUGIN}


def why_without(option: str) -> str:
    """Return why an option has no counterpart; "" if it is none of Mosquitto's."""
    by_prefix = (why for prefix, why in PREFIXES.items() if option.startswith(prefix))
    return WITHOUT.get(option) or next(by_prefix, "")
