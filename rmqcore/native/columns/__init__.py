"""Records as Arrow columns, in memory that is used again when the last reader has let it go.

Never reads a file, and never needs pyarrow.

Floor: F1.
"""
