"""Bringing a store into order when it is opened, and the sizes that its files tell.

Never runs beside a writer, and never faces the user.

Floor: F5.
"""
