"""iSCSI (RFC 7143): PDUs, login, sessions and data transfer as state machines over bytes, without sockets."""
