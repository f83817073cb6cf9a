"""What follows from the log: a stretch as dispatch columns, index entries held against their keys.

Never writes a file; who derives something takes the columns.

Floor: F1.
"""
