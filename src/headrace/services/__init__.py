"""What a node offers beside MQTT: metrics now; tenants, authentication, quotas later."""
