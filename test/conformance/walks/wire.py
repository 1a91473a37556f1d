"""AMQP 0.9.1 frame by frame over a socket: pika's codec with none of its logic, so that what a broker sends is seen in its order."""

import select
import socket
import time

import pika.exceptions
import pika.frame
import pika.spec as spec


class Ended(Exception):
    """The broker closed the socket."""


def simple(value):
    """A field of a method, header or table without what differs between any two runs."""
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, dict):
        return {key: simple(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [simple(inner) for inner in value]
    return value if isinstance(value, (int, bool, str, float, type(None))) else str(value)


class Wire:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""
        self.ended = False
        self.contents = {}  # channel -> [method, header or None, body]
        self.socket.sendall(b"AMQP\x00\x00\x09\x01")
        self.wait(0, spec.Connection.Start)
        capabilities = {"consumer_cancel_notify": True, "basic.nack": True, "publisher_confirms": True, "authentication_failure_close": True}
        self.send(0, spec.Connection.StartOk({"product": "walk", "capabilities": capabilities}, "PLAIN", b"\0guest\0guest", "en_US"))
        tune = self.wait(0, spec.Connection.Tune)
        self.send(0, spec.Connection.TuneOk(tune.channel_max, tune.frame_max, 0))
        self.send(0, spec.Connection.Open("/"))
        self.wait(0, spec.Connection.OpenOk)

    def send(self, channel, method, properties=None, body=b""):
        data = pika.frame.Method(channel, method).marshal()
        if properties is not None:
            data += pika.frame.Header(channel, len(body), properties).marshal()
            if body:
                data += pika.frame.Body(channel, body).marshal()
        try:
            self.socket.sendall(data)
        except OSError:
            self.ended = True

    def read(self, seconds):
        """The next method with its content as (channel, method, properties, body), or None when nothing comes for so long."""
        until = time.monotonic() + seconds
        while True:
            used, frame = pika.frame.decode_frame(self.buffer)
            if frame is not None:
                self.buffer = self.buffer[used:]
                whole = self.take(frame)
                if whole is not None:
                    return whole
                continue
            if self.ended or not select.select([self.socket], [], [], max(0, until - time.monotonic()))[0]:
                return None
            try:
                data = self.socket.recv(1 << 20)
            except OSError:
                data = b""
            self.ended = not data
            self.buffer += data

    def take(self, frame):
        channel = frame.channel_number
        if isinstance(frame, pika.frame.Method):
            if spec.has_content(frame.method.INDEX):
                self.contents[channel] = [frame.method, None, b""]
                return None
            return channel, frame.method, None, b""
        if isinstance(frame, pika.frame.Heartbeat):
            return None
        content = self.contents[channel]
        if isinstance(frame, pika.frame.Header):
            content[1] = frame
        else:
            content[2] += frame.fragment
        if len(content[2]) < content[1].body_size:
            return None
        del self.contents[channel]
        return channel, content[0], content[1].properties, content[2]

    def wait(self, channel, *kinds, seconds=20):
        """The method of one of these kinds on the channel; anything else that comes first is an error."""
        whole = self.read(seconds)
        if whole is None:
            raise Ended
        if whole[0] != channel or not isinstance(whole[1], kinds):
            raise AssertionError(f"instead of {kinds}: {whole}")
        return whole[1]

    def close(self):
        self.socket.close()
