"""Whole clusters from one seed: one process, one thread, a clock, a network and disks of its own.

Name servers, brokers and clients run as they are, on an event loop whose time jumps when nobody has
anything to do and whose order is drawn. Never runs in production: tests and `rmqcore selftest
simulate` use it.

Floor: F9.
"""
