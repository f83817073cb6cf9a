"""What a store that is open for writing is made of: one part a file.

A part gets what it uses by its constructor, other parts among it, and reaches into none of them.
`rmqcore.store.message_store` makes them all, in the order in which one needs the other. Never knows
the store.

Floor: F6.
"""
