"""The reading side: the map of the log, and gets and queries in one native call.

Never writes, and never waits for a writer.

Floor: F1.
"""
