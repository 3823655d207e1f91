"""`headrace config from-mosquitto`: mosquitto.conf(5), its password and ACL files, made into ours."""
