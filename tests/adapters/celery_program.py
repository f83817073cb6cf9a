"""The Celery program of test_celery_suite: each task leaves a line in a file."""

import os
import time
from pathlib import Path

from celery import Celery

import rmqcore.adapters.kombu  # noqa: F401 - registers the transport

folder = Path(os.environ["CELERY_PROGRAM"])
# by its class: this environment has rmqcore's sources, and no entry points
backend = f"rmqcore.adapters.celery:RmqBackend+rmqcore://{folder}/store"
app = Celery("program", broker=f"rmqcore://{folder}/store", backend=backend)
app.conf.update(
    broker_connection_retry_on_startup=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    worker_send_task_events=True,
)


@app.task
def note(number):
    time.sleep(0.02)
    with open(folder / "done", "a") as done:
        done.write(f"{number}\n")
    return number


@app.task
def add(x, y):
    return x + y


@app.task
def total(numbers):
    return sum(numbers)


@app.task(bind=True)
def seen(self):
    return self.request.delivery_info["redelivered"]
