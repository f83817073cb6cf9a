"""Records of the log as Arrow columns, in memory that is reused when its last reader releases it.

Never opens a file, and never needs pyarrow.

Floor: F1.
"""
