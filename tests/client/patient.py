"""Clients in other processes that wait for their answers, however slow the disk is."""

from patience import TIMEOUT_S

#: the beginning of a program; what it does not say it keeps as it is
PATIENT = f"""
from rmqcore.client import Admin, Consumer, Producer
for client in Admin, Consumer, Producer:
    client.__init__.__kwdefaults__["timeout_ms"] = {1000 * TIMEOUT_S}
del Admin, Consumer, Producer, client
"""
