// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
)

// hidden takes the place of a password that is not shown.
const hidden = "(hidden; --show prints it)"

// secretKeys are the keys of the Secret that contain the password.
var secretKeys = map[string]bool{passwordKey: true, "uri": true}

// credentialKeys are the printed keys, in their order.
var credentialKeys = []string{
	usernameKey, passwordKey, "host", "port", "stream-port", "mqtt-port", "web-mqtt-port", "web-amqp-port", "uri",
}

func (r *runner) credentialsCommand() *cobra.Command {
	show := false
	command := &cobra.Command{
		Use:   "credentials [CLUSTER]",
		Short: "Print the credentials of the default user and the addresses for clients",
		Long: `Prints the user name of the default user and the addresses at which clients inside the Kubernetes cluster reach the
broker, from the Secret CLUSTER-default-user. The password and the URI with the password are printed with --show only.`,
		Example: `  kubectl posthorn credentials c
  kubectl posthorn credentials c --show --output json`,
		Args: atMostOneCluster,
		RunE: r.withSession(func(ctx context.Context, s *Session, args []string) error {
			cluster, err := s.findCluster(ctx, optional(args))
			if err != nil {
				return err
			}
			secret, err := s.credentialsSecret(ctx, cluster)
			if err != nil {
				return err
			}
			values := credentialValues(secret, show)
			return r.print(values, func(out io.Writer) error { return writeCredentials(out, secret.Name, values) })
		}),
	}
	command.Flags().BoolVar(&show, "show", false, "print the password and the URI that contains it")
	r.addOutput(command)
	return command
}

// credentialValues returns the printed keys of the Secret. A program gets no text in the place of a password.
func credentialValues(secret *corev1.Secret, show bool) map[string]string {
	values := map[string]string{}
	for _, key := range credentialKeys {
		if value, found := secret.Data[key]; found && (show || !secretKeys[key]) {
			values[key] = string(value)
		}
	}
	return values
}

func writeCredentials(out io.Writer, secret string, values map[string]string) error {
	rows := [][]string{{"secret", secret}}
	for _, key := range credentialKeys {
		value, found := values[key]
		switch {
		case found:
		case key == passwordKey:
			value = hidden
		default:
			continue
		}
		rows = append(rows, []string{key, value})
	}
	var text strings.Builder
	writeRows(&text, rows)
	_, err := fmt.Fprint(out, text.String())
	return err
}
