"""A Celery application as people write them; `celery -A application worker` runs it. QUEUE_TYPE chooses the type of its queues."""

import os

from celery import Celery

BROKER = os.environ.get("BROKER", "amqp://guest:guest@127.0.0.1:5672//")

app = Celery("conformance", broker=BROKER, backend="rpc://")
app.conf.update(
    task_default_queue=f"tasks-{os.environ.get('QUEUE_TYPE', 'classic')}",
    task_default_queue_type=os.environ.get("QUEUE_TYPE", "classic"),
    # Quorum queues have delayed delivery only behind a topic exchange.
    task_default_exchange="tasks",
    task_default_exchange_type="topic",
    worker_detect_quorum_queues=True,
    # Its queues are classic, each on one node: with several nodes it would tie the worker to one of them.
    worker_enable_remote_control=";" not in BROKER,
    broker_transport_options={"confirm_publish": True},
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    result_persistent=False,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=4,
)


@app.task
def add(x, y):
    return x + y


@app.task(bind=True, max_retries=5)
def succeeds_at(self, attempt):
    """Fails, and is tried again at once, until that attempt."""
    if self.request.retries < attempt:
        raise self.retry(countdown=0)
    return self.request.retries


@app.task(bind=True, max_retries=3)
def retries_after(self, seconds):
    if self.request.retries == 0:
        raise self.retry(countdown=seconds)
    return self.request.retries


@app.task
def fails(words):
    raise ValueError(words)


@app.task
def record(directory, name):
    """Leaves a trace, so that a run is seen although its result is lost."""
    with open(os.path.join(directory, str(name)), "a", encoding="utf-8") as file:
        file.write("run\n")


@app.task
def dies_once(directory):
    """The first run takes its worker process with it."""
    marker = os.path.join(directory, "died")
    try:
        with open(marker, "x", encoding="utf-8"):
            os.kill(os.getpid(), 9)
    except FileExistsError:
        return "survived"
