"""The files of a store, one class a file kind.

A file knows its own format and never another kind; none knows who calls it, or when.

Floor: F3.
"""
