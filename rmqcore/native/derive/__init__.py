"""Deriving from the log: consume-queue units and index keys of a stretch of it, and their checks.

Fills columns in memory. Never writes a file: consume queues and index take the columns.

Floor: F1.
"""
