"""The files of a store, one class a file kind.

Each class knows its own format and never another kind; it never decides when it is called.

Floor: F3.
"""
