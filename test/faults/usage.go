package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"posthorn.io/posthorn/test/faults/nodes"
)

// cpuTimes are processor times since the machine started, in clock ticks.
type cpuTimes struct {
	// all is the time of all processors, busy the part that was used, own the part that the node and this test used.
	all, busy, own uint64
}

// cpuUsage measures who uses the processors from a point in time on.
type cpuUsage struct {
	node  *nodes.Node
	start cpuTimes
}

func startCPUUsage(node *nodes.Node) (cpuUsage, error) {
	start, err := readCPUTimes(node)
	return cpuUsage{node, start}, err
}

// others returns the part of the processor time that processes other than the node and this test have used.
func (u cpuUsage) others() (float64, error) {
	end, err := readCPUTimes(u.node)
	if err != nil {
		return 0, err
	}
	return othersBetween(u.start, end), nil
}

func othersBetween(start, end cpuTimes) float64 {
	all, busy, own := end.all-start.all, end.busy-start.busy, end.own-start.own
	if all == 0 || busy < own {
		return 0
	}
	return float64(busy-own) / float64(all)
}

func readCPUTimes(node *nodes.Node) (cpuTimes, error) {
	machine, err := os.ReadFile("/proc/stat")
	if err != nil {
		return cpuTimes{}, err
	}
	times, err := parseMachine(string(machine))
	if err != nil {
		return cpuTimes{}, err
	}
	nodePID, err := node.PID()
	if err != nil {
		return cpuTimes{}, err
	}
	for _, pid := range []int{nodePID, os.Getpid()} {
		process, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return cpuTimes{}, err
		}
		used, err := parseProcess(string(process))
		if err != nil {
			return cpuTimes{}, err
		}
		times.own += used
	}
	return times, nil
}

// parseMachine reads the first line of /proc/stat. Time that a hypervisor gave to others counts as used.
func parseMachine(stat string) (cpuTimes, error) {
	const idle, ioWait, columns = 3, 4, 8 // the columns after those are parts of earlier ones
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	if len(fields) <= columns || fields[0] != "cpu" {
		return cpuTimes{}, fmt.Errorf("/proc/stat begins with %q", line)
	}
	var times cpuTimes
	for column, field := range fields[1 : columns+1] {
		ticks, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return cpuTimes{}, fmt.Errorf("/proc/stat: %w", err)
		}
		times.all += ticks
		if column != idle && column != ioWait {
			times.busy += ticks
		}
	}
	return times, nil
}

// parseProcess returns the ticks of all threads of a process, from its /proc/PID/stat.
func parseProcess(stat string) (uint64, error) {
	const user, system = 11, 12 // columns after the name, which may contain spaces
	fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
	if len(fields) <= system {
		return 0, fmt.Errorf("the stat of a process is %q", stat)
	}
	var sum uint64
	for _, column := range []int{user, system} {
		ticks, err := strconv.ParseUint(fields[column], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("the stat of a process is %q: %w", stat, err)
		}
		sum += ticks
	}
	return sum, nil
}
