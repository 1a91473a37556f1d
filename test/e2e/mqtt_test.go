// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"posthorn.io/posthorn/internal/names"
)

// Packets of MQTT 3.1.1 (section 2.2.1) that these tests need.
const (
	mqttConnect   = 1 << 4
	mqttConnack   = 2 << 4
	mqttPublish   = 3<<4 | 1<<1 // QoS 1
	mqttPuback    = 4 << 4
	mqttSubscribe = 8<<4 | 2
	mqttSuback    = 9 << 4
)

// mqttClient is a connection to one pod.
type mqttClient struct {
	connection net.Conn
	in         *bufio.Reader
}

// speakMQTT subscribes on each broker and publishes on each: every subscriber gets every message.
func speakMQTT() {
	var clients []*mqttClient
	for at := range replicas {
		c, err := dialMQTT(fmt.Sprintf("%s-%d", clusterName, at))
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(c.connection.Close)
		clients = append(clients, c)
	}
	for _, c := range clients {
		Expect(c.write(mqttSubscribe, append(mqttText([]byte{0, 1}, "halls/+"), 1))).To(Succeed())
		Expect(c.expect(mqttSuback)).To(Equal([]byte{0, 1, 1}))
	}
	for at, publisher := range clients {
		topic := fmt.Sprintf("halls/%d", at)
		body := append(mqttText(nil, topic), 0, 1)
		Expect(publisher.write(mqttPublish, append(body, "warm"...))).To(Succeed())
		acknowledged := false
		for _, c := range clients {
			for heard := false; !heard || c == publisher && !acknowledged; {
				kind, packet, err := c.read()
				Expect(err).NotTo(HaveOccurred())
				switch kind &^ 0xF {
				case mqttPuback:
					acknowledged = true
				default:
					Expect(string(packet)).To(And(ContainSubstring(topic), HaveSuffix("warm")))
					id := packet[2+len(topic):][:2]
					Expect(c.write(mqttPuback, id)).To(Succeed())
					heard = true
				}
			}
		}
	}
}

// dialMQTT connects to a pod as the cluster's default user.
func dialMQTT(pod string) (*mqttClient, error) {
	GinkgoHelper()
	there := brokerPod(pod)
	connection, err := dialPod(ctx, "tcp", net.JoinHostPort(there.Status.PodIP, fmt.Sprint(names.PortMQTT)))
	if err != nil {
		return nil, err
	}
	return enterMQTT(connection, clusterName, "on-"+pod)
}

// enterMQTT logs in as a cluster's default user, with a client id.
func enterMQTT(connection net.Conn, cluster, id string) (*mqttClient, error) {
	GinkgoHelper()
	var secret corev1.Secret
	Expect(k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: names.DefaultUserSecret(cluster)}, &secret)).To(Succeed())
	c := &mqttClient{connection: connection, in: bufio.NewReader(connection)}
	// Clean session, user name and password.
	body := append(mqttText(nil, "MQTT"), 4, 0xC2, 0, 0)
	body = mqttText(body, id)
	body = mqttText(mqttText(body, string(secret.Data["username"])), string(secret.Data["password"]))
	if err := c.write(mqttConnect, body); err != nil {
		return nil, err
	}
	answer, err := c.expect(mqttConnack)
	if err == nil && (len(answer) != 2 || answer[1] != 0) {
		err = fmt.Errorf("CONNACK says %v", answer)
	}
	return c, err
}

func (c *mqttClient) write(kind byte, body []byte) error {
	packet := binary.AppendUvarint([]byte{kind}, uint64(len(body)))
	_, err := c.connection.Write(append(packet, body...))
	return err
}

func (c *mqttClient) expect(kind byte) ([]byte, error) {
	got, body, err := c.read()
	if err == nil && got != kind {
		err = fmt.Errorf("packet %d in place of %d", got>>4, kind>>4)
	}
	return body, err
}

func (c *mqttClient) read() (byte, []byte, error) {
	if err := c.connection.SetReadDeadline(time.Now().Add(clientTimeout)); err != nil {
		return 0, nil, err
	}
	kind, err := c.in.ReadByte()
	if err != nil {
		return 0, nil, err
	}
	size, err := binary.ReadUvarint(c.in)
	if err != nil {
		return 0, nil, err
	}
	body := make([]byte, size)
	_, err = io.ReadFull(c.in, body)
	return kind, body, err
}

func mqttText(out []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(out, uint16(len(s))), s...)
}
