"""``rmqcore demo``: real text through the whole engine, each byte compared.

Never touches a store but those that it makes itself.

Floor: F10.
"""
