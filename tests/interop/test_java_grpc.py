"""RocketMQ 5's Java client at our broker: its own examples, only their constants changed."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from broker.serving import serving
from patience import until

from interop.cluster import TIMEOUT_S

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(shutil.which("mvn") is None, reason="not on this machine: mvn"),
]
POM = Path(__file__).parent / "grpc" / "pom.xml"
FOLDER = "org/apache/rocketmq/client/java/example"
PACKAGE = FOLDER.replace("/", ".")
KEYS = {"ACCESS_KEY": "operator", "SECRET_KEY": "secret-0"}
CONSTANTS = {
    r'"foobar\.com:8080"': "ENDPOINTS",
    r'"your\w*AccessKey"': "ACCESS_KEY",
    r'"your\w*SecretKey"': "SECRET_KEY",
    r'"your\w*Topic"': "TOPIC",
    r'"yourConsumerGroup"': "GROUP",
}
#: what sends, by the topic
PRODUCERS = {
    "normal": "ProducerNormalMessageExample",
    "async": "AsyncProducerExample",
    "fifo": "ProducerFifoMessageExample",
    "delay": "ProducerDelayMessageExample",
    "priority": "ProducerPriorityMessageExample",
    "transaction": "ProducerTransactionMessageExample",
}
SENT = re.compile(r"Send (?:transaction )?message successfully, messageId=(\w+)")
ACKNOWLEDGED = re.compile(r"Message is acknowledged successfully, messageId=(\w+)")
CONSUMED = re.compile(r"Consume message=.*?messageId=(\w+)")


@pytest.fixture(scope="module", params=["plain", "tls-with-an-account"])
def examples(request, tmp_path_factory):
    """The class path of the examples, and whether they use TLS."""
    home, plain = tmp_path_factory.mktemp("java-grpc"), request.param == "plain"
    maven = ["mvn", "-q", "-B", "-f", POM]
    to = f"-DoutputDirectory={home / 'lib'}"
    subprocess.run([*maven, "dependency:copy-dependencies", to], check=True)
    (client,) = (home / "lib").glob("rocketmq-client-java-*.jar")
    artifact = f"org.apache.rocketmq:rocketmq-client-java:{client.stem.rpartition('-')[2]}"
    sources = [f"-Dartifact={artifact}:jar:sources", f"-DoutputDirectory={home}"]
    subprocess.run([*maven, "dependency:copy", *sources], check=True)
    (packed,) = home.glob("*-sources.jar")
    with zipfile.ZipFile(packed) as archive:
        names = [each for each in archive.namelist() if each.startswith(f"{FOLDER}/")]
        archive.extractall(home / "src", names)
    for file in (home / "src" / FOLDER).glob("*.java"):
        text = file.read_text("utf-8")
        for constant, name in CONSTANTS.items():
            text = re.sub(constant, f'System.getenv("{name}")', text)
        if plain:
            text = text.replace(
                ".setCredentialProvider(", ".enableSsl(false).setCredentialProvider("
            )
        file.write_text(text, "utf-8")
    (home / "classes").mkdir()
    libraries = f"{home / 'lib'}/*"
    files = sorted((home / "src" / FOLDER).glob("*.java"))
    subprocess.run(["javac", "-cp", libraries, "-d", home / "classes", *files], check=True)
    return f"{home / 'classes'}:{libraries}", plain


class Example:
    """One of them while it runs: none ends by itself."""

    def __init__(self, class_path, name, home, environment):
        home.mkdir(parents=True)
        self._log = home / "logs" / "rocketmq" / "rocketmq-client.log"
        self._process = subprocess.Popen(
            ["java", "-Xmx128m", f"-Duser.home={home}", "-cp", class_path, f"{PACKAGE}.{name}"],
            env={**os.environ, **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def has_logged(self, pattern):
        """What a pattern has found in its log, each once."""
        with contextlib.suppress(FileNotFoundError):
            return set(re.findall(pattern, self._log.read_text("utf-8", "replace")))
        return set()

    def kill(self):
        self._process.kill()
        self._process.wait(TIMEOUT_S)


def test_the_examples_of_the_java_client(examples, tmp_path):
    class_path, plain = examples
    options, environment = ["-c", "recallMessageEnable=true"], dict(KEYS)
    if not plain:
        auth = tmp_path / "accounts.json"
        account = {"accessKey": KEYS["ACCESS_KEY"], "secretKey": KEYS["SECRET_KEY"], "admin": True}
        auth.write_text(json.dumps({"accounts": [account]}), "utf-8")
        options += ["--auth", str(auth)]
    with (
        serving(tmp_path / "store", "--grpc-port", "0", *options) as (_, facts),
        contextlib.ExitStack() as stack,
    ):

        def run(name, topic, group=""):
            own = {"ENDPOINTS": facts["grpc"], "TOPIC": topic, "GROUP": group}
            home = tmp_path / f"{name}-{topic}"
            example = Example(class_path, name, home, environment | own)
            stack.callback(example.kill)
            return example

        sent = {}
        for topic, name in PRODUCERS.items():
            producer = run(name, topic)
            until(lambda it=producer: it.has_logged(SENT), f"{name} has sent")
            sent[topic] = producer.has_logged(SENT)
        for topic, ids in sent.items():
            consumer = run("SimpleConsumerExample", topic, "simple")
            what = f"{topic} is received and acknowledged"
            until(lambda it=consumer, ids=ids: it.has_logged(ACKNOWLEDGED) == ids, what)
        consumer = run("AsyncSimpleConsumerExample", "normal", "async")
        until(
            lambda: consumer.has_logged(ACKNOWLEDGED) == sent["normal"], "received, not waited for"
        )
        pushing = run("PushConsumerExample", "fifo", "push")
        until(lambda: pushing.has_logged(CONSUMED) == sent["fifo"], "pushed")
        # the producer knows by itself that no topic takes lite messages
        refused = "lite topics are not served|actualMessageType=LITE, acceptMessageTypes="
        for name in ("LiteProducerExample", "LitePushConsumerExample"):
            lite = run(name, "normal", "lite")
            until(lambda it=lite: it.has_logged(refused), f"{name} is refused")
