// Copyright The Posthorn Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// maxLine bounds a line of a log, in bytes; the rest of a longer line is left out.
	maxLine = 1 << 20
	// cut ends a line that is too long.
	cut = " [cut]"
)

// logOptions are the flags of logs.
type logOptions struct {
	follow, previous, timestamps bool
	tail                         int64
	since                        time.Duration
	node                         string
}

func (r *runner) logsCommand() *cobra.Command {
	options := logOptions{}
	command := &cobra.Command{
		Use:   "logs [CLUSTER]",
		Short: "Print the logs of all nodes, merged in the order of time",
		Long: `Prints the logs of all nodes of a cluster. Each line begins with the name of its node. Lines are in the order of time;
with --follow, in the order in which they arrive.

With --follow the command continues with the new pod when a pod is replaced, and ends when it is interrupted.`,
		Example: `  kubectl posthorn logs c --since 10m
  kubectl posthorn logs c --follow --tail 20
  kubectl posthorn logs c --node c-1 --previous`,
		Args: atMostOneCluster,
		RunE: r.withSession(func(ctx context.Context, s *Session, args []string) error {
			if options.follow && options.previous {
				return usageErrorf("--follow and --previous exclude each other: a container that has ended writes nothing")
			}
			cluster, err := s.findCluster(ctx, optional(args))
			if err != nil {
				return err
			}
			pods, err := s.podsOf(ctx, cluster)
			if err != nil {
				return err
			}
			nodes := make([]string, 0, len(pods))
			for i := range pods {
				if options.node == "" || options.node == pods[i].Name {
					nodes = append(nodes, pods[i].Name)
				}
			}
			if len(nodes) == 0 {
				if options.node != "" {
					return s.unknownNode(ctx, options.node)
				}
				return fmt.Errorf("cluster %s has no pods; kubectl posthorn status %[1]s --namespace %s shows why", cluster.Name, s.Namespace)
			}
			return r.mergeLogs(ctx, s, nodes, options)
		}),
	}
	flags := command.Flags()
	flags.BoolVarP(&options.follow, "follow", "f", false, "continue with new lines until interrupted")
	flags.BoolVarP(&options.previous, "previous", "p", false, "print the logs of the containers before the last restart")
	flags.BoolVar(&options.timestamps, "timestamps", false, "print the time at which each line was written, as Kubernetes recorded it")
	flags.Int64Var(&options.tail, "tail", -1, "number of last lines of each node (default: all)")
	flags.DurationVar(&options.since, "since", 0, "only lines that are newer than this, for example 10m (default: all)")
	flags.StringVar(&options.node, "node", "", "only this node")
	return command
}

// line of a log.
type line struct {
	at   time.Time
	text string
}

// source is the log of one node.
type source struct {
	node string
	// lines has one element of buffer, so that memory does not grow with the logs. It is closed at the end of the log.
	lines chan line
	// err is why the log ended early; it is set before lines is closed.
	err error
}

// mergeLogs prints the logs of nodes.
func (r *runner) mergeLogs(ctx context.Context, s *Session, nodes []string, options logOptions) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sources := make([]*source, 0, len(nodes))
	for _, node := range nodes {
		one := &source{node: node, lines: make(chan line, 1)}
		sources = append(sources, one)
		go func() {
			defer close(one.lines)
			one.err = s.readLog(ctx, one, options)
		}()
	}
	write := func(node string, l line) error {
		text := l.text
		if options.timestamps {
			text = l.at.Format(time.RFC3339Nano) + " " + text
		}
		_, err := fmt.Fprintf(r.Out, "%s %s\n", node, text)
		return err
	}
	if options.follow {
		return followSources(sources, write)
	}
	return mergeSources(sources, write)
}

// mergeSources prints the lines of all sources in the order of time, with one line of each in memory.
func mergeSources(sources []*source, write func(string, line) error) error {
	heads := make([]*line, len(sources))
	next := func(i int) {
		heads[i] = nil
		if l, open := <-sources[i].lines; open {
			heads[i] = &l
		}
	}
	for i := range sources {
		next(i)
	}
	for {
		first := -1
		for i, head := range heads {
			if head != nil && (first < 0 || head.at.Before(heads[first].at)) {
				first = i
			}
		}
		if first < 0 {
			return failuresOf(sources)
		}
		if err := write(sources[first].node, *heads[first]); err != nil {
			return err
		}
		next(first)
	}
}

// followSources prints the lines of all sources as they arrive.
func followSources(sources []*source, write func(string, line) error) error {
	var mu sync.Mutex
	var all sync.WaitGroup
	var failed error
	for _, one := range sources {
		all.Go(func() {
			for l := range one.lines {
				mu.Lock()
				if err := write(one.node, l); err != nil && failed == nil {
					failed = err
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return errors.Join(failed, failuresOf(sources))
}

// failuresOf returns why sources ended early. An interruption by the user is no failure.
func failuresOf(sources []*source) error {
	var all error
	for _, one := range sources {
		if one.err != nil && !errors.Is(one.err, context.Canceled) {
			all = errors.Join(all, one.err)
		}
	}
	return all
}

// readLog sends the lines of a node's log to its source. When following, it continues with the next container or pod.
func (s *Session) readLog(ctx context.Context, one *source, options logOptions) error {
	wanted := corev1.PodLogOptions{Follow: options.follow, Previous: options.previous, Timestamps: true}
	if options.tail >= 0 {
		wanted.TailLines = &options.tail
	}
	if options.since > 0 {
		since := metav1.NewTime(time.Now().Add(-options.since))
		wanted.SinceTime = &since
	}
	last := time.Time{}
	isFirst := true
	for {
		stream, err := s.Pods.Logs(ctx, s.Namespace, one.node, wanted)
		switch {
		case err == nil:
			last, err = copyLines(ctx, stream, last, one.lines)
			_ = stream.Close()
			if err != nil && !options.follow {
				return fmt.Errorf("reading the log of node %s: %w", one.node, err)
			}
		case isForbidden(err), !options.follow, isFirst && !isNotStarted(err):
			return s.explain(err, "reading the log of node "+one.node, right{"get", "pods/log", one.node})
		}
		if !options.follow {
			return nil
		}
		isFirst = false
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(s.Poll):
		}
		if !last.IsZero() {
			// The kubelet compares with a precision of a second; copyLines leaves out the lines that were sent already.
			since := metav1.NewTime(last)
			wanted.SinceTime, wanted.TailLines = &since, nil
		}
	}
}

// isNotStarted reports whether a pod or its container does not exist yet.
func isNotStarted(err error) bool { return apierrors.IsNotFound(err) || apierrors.IsBadRequest(err) }

// copyLines sends the lines of a stream that are newer than after, and returns the time of the last one.
func copyLines(ctx context.Context, stream io.Reader, after time.Time, lines chan<- line) (time.Time, error) {
	reader := bufio.NewReaderSize(stream, 64<<10)
	last := after
	for {
		text, err := readLine(reader)
		if text != "" {
			l := parseLine(text)
			if l.at.IsZero() || l.at.After(after) {
				select {
				case lines <- l:
				case <-ctx.Done():
					return last, ctx.Err()
				}
			}
			if l.at.After(last) {
				last = l.at
			}
		}
		if errors.Is(err, io.EOF) {
			return last, nil
		}
		if err != nil {
			return last, err
		}
	}
}

// readLine reads a line of at most maxLine bytes, without its end, and skips the rest of a longer one.
func readLine(reader *bufio.Reader) (string, error) {
	var text strings.Builder
	isCut := false
	for {
		part, isPrefix, err := reader.ReadLine()
		room := maxLine - text.Len()
		if len(part) > room {
			part, isCut = part[:room], true
		}
		text.Write(part)
		if err != nil || !isPrefix {
			if isCut {
				text.WriteString(cut)
			}
			return text.String(), err
		}
	}
}

// parseLine separates the time that Kubernetes adds.
func parseLine(text string) line {
	stamp, rest, _ := strings.Cut(text, " ")
	at, err := time.Parse(time.RFC3339Nano, stamp)
	if err != nil {
		return line{text: text}
	}
	return line{at: at, text: rest}
}
