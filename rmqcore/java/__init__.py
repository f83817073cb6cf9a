"""Java's dialects of text: properties files, and JSON as fastjson writes it.

Never knows a property or a field by name.

Floor: F1.
"""
