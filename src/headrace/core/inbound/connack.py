"""What CONNACK grants (section 3.2.2): how long the session lives, which limits hold both ways, of which type it is.

Pure: computes from the CONNECT and the settings, and writes it into the properties of the answer and onto the link.
"""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING

from headrace.core.outbound.message_ids import IdRendering
from headrace.core.outbound.reserving import reserve_chunk
from headrace.core.records.message_id import JournalName
from headrace.core.state.session import APPLICATION, DEVICE

if TYPE_CHECKING:
    from headrace.core.ports.limits import Limits
    from headrace.core.ports.link import Link
    from headrace.core.ports.settings import BrokerSettings
    from headrace.mqtt.packets import Connect
    from headrace.mqtt.properties import Properties


class Grants:
    """Decides what a client gets of what it asked for in CONNECT."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self.journal = JournalName()

    def expiry_s(self, limits: Limits, packet: Connect, answer: Properties) -> int:
        """Return the seconds that the session outlives its connection."""
        if packet.version < 5:
            return 0 if packet.clean_start else min(limits.v311_session_expiry_s, limits.session_expiry_max_s)
        asked = packet.properties.session_expiry_interval or 0
        granted = min(asked, limits.session_expiry_max_s)
        if granted != asked:
            answer.session_expiry_interval = granted  # 3.2.2.3.2
        return granted

    def promise(self, link: Link, packet: Connect, answer: Properties) -> bool:
        """Add what CONNACK tells a version 5 client. False: it would exceed the client's Maximum Packet Size, and then
        nothing may be sent at all [MQTT-3.1.2-24]."""
        settings, limits = self._settings, link.identity.limits
        answer.receive_maximum = limits.receive_maximum
        answer.maximum_packet_size = link.packet_bytes_max
        answer.topic_alias_maximum = settings.topic_alias_maximum
        _deny(limits, answer)
        longest = limits.keep_alive_max_s
        if longest and (packet.keep_alive_s == 0 or packet.keep_alive_s > longest):
            answer.server_keep_alive = longest  # [MQTT-3.1.2-21]
        if packet.properties.request_response_information and settings.response_information:
            answer.response_information = settings.response_information  # [MQTT-3.1.2-28]
        if not link.max_packet_size:
            return True
        if not link.fits(answer):
            answer.response_information = None  # [MQTT-3.2.2-19]
        return link.fits(answer)

    def set_window(self, link: Link, packet: Connect) -> None:
        """Set how much may be in flight towards the client, and how many topic aliases."""
        window = link.identity.limits.inflight_max
        if packet.properties.receive_maximum is not None:
            window = min(window, packet.properties.receive_maximum)
        link.window = window
        link.chunk = reserve_chunk(window)
        link.alias_maximum = min(
            packet.properties.topic_alias_maximum or 0, self._settings.topic_alias_outbound
        )
        if packet.properties.user_properties:
            self._name_messages(link, packet)

    def _name_messages(self, link: Link, packet: Connect) -> None:
        """Let a client have message ids that has asked for them, instead of topic aliases."""
        wanted = self._settings.message_id_property
        if wanted and any(name == wanted for name, _ in packet.properties.user_properties):
            link.rendering = IdRendering(self.journal, wanted)
            link.alias_maximum = 0

    def session_type(self, link: Link, packet: Connect) -> int:
        """Return the type of a session by configuration rules, then by the CONNECT user property; else it is DEVICE
        (decision 16)."""
        settings, of_tenant = self._settings, link.identity.limits.session_type
        if of_tenant:
            return APPLICATION if of_tenant == "application" else DEVICE
        # Where somebody looks at names, the one that was found counts, not the one beside a client certificate.
        user = packet.username if link.rights is None else link.identity.user
        if user is not None and user in settings.application_user_names:
            return APPLICATION
        for pattern in settings.application_client_ids:
            if fnmatch.fnmatchcase(packet.client_id, pattern):
                return APPLICATION
        if settings.session_type_property:
            for name, value in packet.properties.user_properties:
                if name == "session-type":
                    return APPLICATION if value.lower() == "application" else DEVICE
        return DEVICE


def _deny(limits: Limits, answer: Properties) -> None:
    """Say what clients of the tenant cannot have; what is not said they can."""
    if limits.maximum_qos < 2:
        answer.maximum_qos = limits.maximum_qos  # 3.2.2.3.4
    if not limits.retain_available:
        answer.retain_available = 0  # 3.2.2.3.5
    if not limits.wildcard_subscriptions:
        answer.wildcard_subscription_available = 0  # 3.2.2.3.11
    if not limits.shared_subscriptions:
        answer.shared_subscription_available = 0  # 3.2.2.3.13
