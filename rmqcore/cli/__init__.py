"""The ``rmqcore`` command; needs the extra ``[cli]``.

Never does what the library cannot: it parses, calls and prints.

Floor: F10.
"""
