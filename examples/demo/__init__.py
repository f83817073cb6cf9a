"""``rmqcore demo``: real text through the whole engine, each byte compared.

Never touches a store but those that it makes itself. `rmqcore demo` finds it in a clone of the
repository.
"""
