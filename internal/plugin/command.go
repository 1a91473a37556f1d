// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plugin has the commands of kubectl posthorn. They read and change objects with the rights of the user, and
// query brokers through connections that the API server forwards to a pod.
package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// Streams of the program.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// Connector opens a session with the Kubernetes cluster of the options.
type Connector func(Options) (*Session, error)

// runner is what the commands share: it connects once the options are parsed.
type runner struct {
	Streams
	connect Connector
	options Options
	// format is the value of --output.
	format string
}

// Formats of --output.
const (
	formatTable = "table"
	formatJSON  = "json"
	formatYAML  = "yaml"
)

const example = `  # State of the only cluster in the namespace, of a given one, and of all nodes for a program
  kubectl posthorn status
  kubectl posthorn status c --namespace mq
  kubectl posthorn status c --output json

  # Web UI of a cluster in the browser
  kubectl posthorn ui c --open

  # Move the leaders of the queues away from a node, for example before work on its machine, and back
  kubectl posthorn drain c-1
  kubectl posthorn undrain c-1

  # Restart all nodes one by one, or one node, without a queue losing its majority
  kubectl posthorn restart c
  kubectl posthorn restart c-1

  # Any operation of posthorn ctl
  kubectl posthorn ctl c -- list_queues --vhost orders`

// NewCommand returns the command kubectl posthorn.
func NewCommand(connect Connector, streams Streams) *cobra.Command {
	r := &runner{Streams: streams, connect: connect}
	root := &cobra.Command{
		Use:   "kubectl-posthorn",
		Short: "Inspect and operate Posthorn clusters",
		Long: `Inspects and operates the Posthorn clusters (BrokerClusters) of a Kubernetes cluster.

The commands use the current context of the kubeconfig and your own rights. CLUSTER is the name of a
BrokerCluster, and may be left out where the namespace has only one. NODE is the name of a pod, for example c-1.`,
		Example:       example,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl posthorn"},
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(func(command *cobra.Command, err error) error {
		return usageErrorf("%w; %s --help lists the options", err, command.CommandPath())
	})
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.Err)
	flags := root.PersistentFlags()
	flags.StringVar(&r.options.Kubeconfig, "kubeconfig", "", "path of the kubeconfig (default: $KUBECONFIG, else ~/.kube/config)")
	flags.StringVar(&r.options.Context, "context", "", "context of the kubeconfig (default: the current one)")
	flags.StringVarP(&r.options.Namespace, "namespace", "n", "", "namespace of the cluster (default: that of the context)")
	flags.StringVar(&r.options.As, "as", "", "user to impersonate")
	flags.StringArrayVar(&r.options.AsGroups, "as-group", nil, "group to impersonate; may be repeated")
	root.AddCommand(
		r.statusCommand(), r.uiCommand(), r.credentialsCommand(), r.drainCommand(), r.undrainCommand(), r.restartCommand(),
		r.logsCommand(), r.ctlCommand(), r.pauseCommand(), r.resumeCommand(),
	)
	return root
}

// addOutput adds --output to a command.
func (r *runner) addOutput(command *cobra.Command) {
	command.Flags().StringVarP(&r.format, "output", "o", formatTable, "format: table, json or yaml")
}

// checkOutput refuses an unknown format before anything happens.
func (r *runner) checkOutput() error {
	switch r.format {
	case "", formatTable, formatJSON, formatYAML:
		return nil
	}
	return usageErrorf("--output %s is not a format; use table, json or yaml", r.format)
}

// print writes a value in the format of --output; table writes the table.
func (r *runner) print(value any, table func(io.Writer) error) error {
	var data []byte
	var err error
	switch r.format {
	case formatJSON:
		if data, err = json.MarshalIndent(value, "", "  "); err == nil {
			data = append(data, '\n')
		}
	case formatYAML:
		data, err = yaml.Marshal(value)
	default:
		return table(r.Out)
	}
	if err != nil {
		return fmt.Errorf("encoding the output: %w", err)
	}
	_, err = r.Out.Write(data)
	return err
}

// withSession wraps a command that needs a session.
func (r *runner) withSession(run func(context.Context, *Session, []string) error) func(*cobra.Command, []string) error {
	return func(command *cobra.Command, args []string) error {
		if err := r.checkOutput(); err != nil {
			return err
		}
		session, err := r.connect(r.options)
		if err != nil {
			return err
		}
		return run(command.Context(), session, args)
	}
}

// oneNode checks that a command has one argument, the name of a node.
func oneNode(command *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usageErrorf("%s takes the name of one node and not %d names, for example: %[1]s c-1", command.CommandPath(), len(args))
	}
	return nil
}

// atMostOneCluster checks that a command has no argument but the name of a cluster.
func atMostOneCluster(command *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usageErrorf("%s takes one name and not %d, for example: %[1]s c", command.CommandPath(), len(args))
	}
	return nil
}

// optional returns the only argument; empty when there is none.
func optional(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

// exitError is an error with an exit code of its own.
type exitError struct {
	code int
	err  error
}

// Error returns the message; empty when the cause has been printed already.
func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

// Unwrap returns the cause.
func (e *exitError) Unwrap() error { return e.err }

// Exit codes.
const (
	exitFailure = 1
	exitUsage   = 2
)

// usageErrorf returns an error about the command line.
func usageErrorf(format string, args ...any) error {
	return &exitError{code: exitUsage, err: fmt.Errorf(format, args...)}
}

// ExitCode returns the exit code for an error: 2 for a wrong command line, that of the operation for ctl, else 1.
func ExitCode(err error) int {
	var exit *exitError
	if errors.As(err, &exit) {
		return exit.code
	}
	return exitFailure
}
