"""The store behind what Python programs already use; a module for each, named after it.

A module imports what it adapts, which an extra of the same name brings; it never needs that for
anything else, and no module needs another's.

Floor: F9.
"""
