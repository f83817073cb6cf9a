"""A store as its user has it: open for writing or read only, its puts and its reads.

Wires files, services and recovery; never touches a record's bytes itself.

Floor: F6.
"""
