// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	posthornv1 "posthorn.io/posthorn/api/v1alpha1"
	"posthorn.io/posthorn/internal/names"
)

const (
	streamsCluster  = "streams"
	streamName      = "events"
	superStreamName = "invoices"
)

// Keys of the commands of the stream protocol that these tests need; a response has the highest bit too.
const (
	streamMetadata     = 0x000f
	streamProperties   = 0x0011
	streamHandshake    = 0x0012
	streamAuthenticate = 0x0013
	streamTune         = 0x0014
	streamOpen         = 0x0015
	streamHeartbeat    = 0x0017
	streamPartitions   = 0x0019
	streamResponse     = 0x8000
	streamOK           = 1
	// maxStreamFrame bounds a frame in bytes.
	maxStreamFrame = 1 << 20
)

func streamsObjects() []client.Object {
	cluster := newCluster()
	cluster.Name = streamsCluster
	cluster.Spec.Protocols = []posthornv1.Protocol{posthornv1.ProtocolAMQP, posthornv1.ProtocolStream}
	age := map[string]apiextensionsv1.JSON{"x-max-age": {Raw: []byte(`"1D"`)}}
	ref := posthornv1.ClusterReference{Name: streamsCluster}
	return []client.Object{
		cluster,
		&posthornv1.Queue{ObjectMeta: meta(streamName), Spec: posthornv1.QueueSpec{
			ClusterRef: ref, Type: posthornv1.QueueTypeStream, Replicas: replicas, Arguments: age, ReclaimPolicy: posthornv1.ReclaimDelete,
		}},
		&posthornv1.SuperStream{ObjectMeta: meta(superStreamName), Spec: posthornv1.SuperStreamSpec{
			ClusterRef: ref, Partitions: 3, Replicas: replicas, Arguments: age, ReclaimPolicy: posthornv1.ReclaimDelete,
		}},
	}
}

var _ = Describe("three brokers with streams", Ordered, func() {
	var queue posthornv1.Queue

	BeforeAll(func() {
		for _, object := range streamsObjects() {
			Expect(k8s.Create(ctx, object)).To(Succeed())
		}
		DeferCleanup(func() {
			for _, object := range streamsObjects() {
				Expect(client.IgnoreNotFound(k8s.Delete(ctx, object))).To(Succeed())
			}
		})
	})

	It("start from a cluster, a Queue of type stream and a SuperStream", func() {
		for _, object := range streamsObjects() {
			becomesReady(object)
		}
		Eventually(func(g Gomega) {
			g.Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: streamName}, &queue)).To(Succeed())
			g.Expect(queue.Status.Members).To(HaveLen(replicas))
			g.Expect(queue.Status.OnlineMembers).To(HaveLen(replicas))
			g.Expect(queue.Status.Leader).NotTo(BeEmpty())
			var s posthornv1.SuperStream
			g.Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: superStreamName}, &s)).To(Succeed())
			g.Expect(s.Status.Partitions).To(BeEquivalentTo(3))
			g.Expect(s.Status.UsablePartitions).To(BeEquivalentTo(3))
		}).Should(Succeed())
	})

	It("tell stream clients the name of each node in the headless Service, and the partitions in their order", func() {
		for at := range replicas {
			pod := fmt.Sprintf("%s-%d", streamsCluster, at)
			c := dialStream(pod)
			leader, all, err := c.metadata(streamName)
			Expect(err).NotTo(HaveOccurred())
			Expect(all).To(HaveLen(replicas))
			for node := range replicas {
				host := names.NodeHost(namespace, streamsCluster, fmt.Sprintf("%s-%d", streamsCluster, node))
				Expect(all).To(ContainElement(net.JoinHostPort(host, fmt.Sprint(names.PortStream))))
			}
			Expect(all).To(ContainElement(leader))
			partitions, err := c.partitions(superStreamName)
			Expect(err).NotTo(HaveOccurred())
			Expect(partitions).To(Equal([]string{"invoices-0", "invoices-1", "invoices-2"}))
		}
	})

	It("have no stream after the deletion of the objects", func() {
		objects := streamsObjects()
		for _, object := range objects[1:] {
			Expect(k8s.Delete(ctx, object)).To(Succeed())
			Eventually(func() error { return k8s.Get(ctx, client.ObjectKeyFromObject(object), object) }).Should(MatchError(ContainSubstring("not found")))
		}
		c := dialStream(streamsCluster + "-0")
		_, _, err := c.metadata(streamName)
		Expect(err).To(MatchError(ContainSubstring("has the code 2")), "the stream does not exist")
		_, err = c.partitions(superStreamName)
		Expect(err).To(HaveOccurred())
	})
})

// streamClient is a connection to one pod.
type streamClient struct {
	connection net.Conn
	in         *bufio.Reader
	last       uint32
}

// dialStream logs in on a pod as the default user of the cluster.
func dialStream(pod string) *streamClient {
	GinkgoHelper()
	there := brokerPod(pod)
	connection, err := dialPod(ctx, "tcp", net.JoinHostPort(there.Status.PodIP, fmt.Sprint(names.PortStream)))
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(connection.Close)
	var secret corev1.Secret
	Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: names.DefaultUserSecret(streamsCluster)}, &secret)).To(Succeed())
	Expect(string(secret.Data["stream-port"])).To(Equal(fmt.Sprint(names.PortStream)))
	c, err := enterStream(connection, secret.Data["username"], secret.Data["password"])
	Expect(err).NotTo(HaveOccurred())
	return c
}

// enterStream logs in and opens the vhost /. The client accepts the limits that the server proposes after the login.
func enterStream(connection net.Conn, username, password []byte) (*streamClient, error) {
	c := &streamClient{connection: connection, in: bufio.NewReader(connection)}
	plain := fmt.Appendf(nil, "\x00%s\x00%s", username, password)
	login := binary.BigEndian.AppendUint32(streamText(nil, "PLAIN"), uint32(len(plain)))
	for _, step := range []struct {
		key  uint16
		body []byte
	}{
		{streamProperties, make([]byte, 4)}, {streamHandshake, nil}, {streamAuthenticate, append(login, plain...)},
		{streamTune, nil}, {streamOpen, streamText(nil, "/")},
	} {
		if step.key == streamTune {
			key, limits, err := c.read()
			if err == nil && key != streamTune {
				err = fmt.Errorf("command %#x in place of the limits", key)
			}
			if err == nil {
				err = c.write(streamTune, limits.rest)
			}
			if err != nil {
				return nil, err
			}
			continue
		}
		body, err := c.call(step.key, step.body)
		if err != nil {
			return nil, err
		}
		if code := body.u16(); code != streamOK {
			return nil, fmt.Errorf("command %#x has the code %d", step.key, code)
		}
	}
	return c, nil
}

// metadata returns the address of the leader of a stream, and of all nodes in the answer.
func (c *streamClient) metadata(stream string) (string, []string, error) {
	body, err := c.call(streamMetadata, streamText([]byte{0, 0, 0, 1}, stream))
	if err != nil {
		return "", nil, err
	}
	nodes, all := map[uint16]string{}, []string{}
	for range body.u32() {
		reference, host, port := body.u16(), body.text(), body.u32()
		nodes[reference] = net.JoinHostPort(host, fmt.Sprint(port))
		all = append(all, nodes[reference])
		if body.short {
			break
		}
	}
	if count := body.u32(); count != 1 {
		return "", nil, fmt.Errorf("%d streams in the answer about one", count)
	}
	name, code, leader := body.text(), body.u16(), body.u16()
	if code != streamOK {
		return "", nil, fmt.Errorf("stream %s has the code %d", name, code)
	}
	if body.short {
		return "", nil, io.ErrUnexpectedEOF
	}
	return nodes[leader], all, nil
}

// partitions returns the streams of a super stream.
func (c *streamClient) partitions(superStream string) ([]string, error) {
	body, err := c.call(streamPartitions, streamText(nil, superStream))
	if err != nil {
		return nil, err
	}
	if code := body.u16(); code != streamOK {
		return nil, fmt.Errorf("super stream %s has the code %d", superStream, code)
	}
	var out []string
	for range body.u32() {
		out = append(out, body.text())
		if body.short {
			return nil, io.ErrUnexpectedEOF
		}
	}
	return out, nil
}

// call sends a command and returns the body of its response, after the correlation id. It skips heartbeats.
func (c *streamClient) call(key uint16, body []byte) (*streamBody, error) {
	c.last++
	if err := c.write(key, append(binary.BigEndian.AppendUint32(nil, c.last), body...)); err != nil {
		return nil, err
	}
	for {
		got, answer, err := c.read()
		if err != nil {
			return nil, err
		}
		switch got {
		case streamHeartbeat:
		case key | streamResponse:
			if id := answer.u32(); id != c.last {
				return nil, fmt.Errorf("response %d to request %d", id, c.last)
			}
			return answer, nil
		default:
			return nil, fmt.Errorf("command %#x in place of the response to %#x", got, key)
		}
	}
}

func (c *streamClient) write(key uint16, body []byte) error {
	frame := binary.BigEndian.AppendUint32(nil, uint32(4+len(body)))
	frame = binary.BigEndian.AppendUint16(frame, key)
	frame = binary.BigEndian.AppendUint16(frame, 1)
	_, err := c.connection.Write(append(frame, body...))
	return err
}

func (c *streamClient) read() (uint16, *streamBody, error) {
	if err := c.connection.SetReadDeadline(time.Now().Add(clientTimeout)); err != nil {
		return 0, nil, err
	}
	var head [8]byte
	if _, err := io.ReadFull(c.in, head[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size < 4 || size > maxStreamFrame {
		return 0, nil, errors.New("a frame of a wrong size")
	}
	body := make([]byte, size-4)
	_, err := io.ReadFull(c.in, body)
	return binary.BigEndian.Uint16(head[4:]), &streamBody{rest: body}, err
}

// streamBody is the body of a frame.
type streamBody struct {
	rest []byte
	// short: the body ended too early.
	short bool
}

func (b *streamBody) take(n int) []byte {
	if n > len(b.rest) {
		b.rest, b.short = nil, true
		return make([]byte, n)
	}
	out := b.rest[:n]
	b.rest = b.rest[n:]
	return out
}

func (b *streamBody) u16() uint16 { return binary.BigEndian.Uint16(b.take(2)) }

func (b *streamBody) u32() uint32 { return binary.BigEndian.Uint32(b.take(4)) }

func (b *streamBody) text() string { return string(b.take(int(b.u16()))) }

func streamText(out []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(out, uint16(len(s))), s...)
}
