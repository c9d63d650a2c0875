package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"sort"
	"strings"

	"github.com/anishathalye/porcupine"
)

// Op is one line of the file. Times are nanoseconds of one clock. Return 0: there was no answer.
type Op struct {
	Client  int    `json:"client"`
	Kind    string `json:"kind"`
	Key     string `json:"key"`
	Value   int64  `json:"value"`
	Call    int64  `json:"call"`
	Return  int64  `json:"return"`
	Outcome string `json:"outcome"`
	Via     string `json:"via"`
	line    int
}

// Key is the history of one register.
type Key struct {
	Name       string
	Operations []porcupine.Operation
}

// register: a read returns the last written value, and 0 before the first write.
var register = porcupine.Model{
	Init: func() any { return int64(0) },
	Step: func(state, input, _ any) (bool, any) {
		if op := input.(Op); op.Kind == "write" {
			return true, op.Value
		} else {
			return op.Value == state.(int64), state
		}
	},
	DescribeOperation: func(input, _ any) string {
		op := input.(Op)
		if op.Kind == "write" {
			return fmt.Sprintf("write %d via %s", op.Value, op.Via)
		}
		return fmt.Sprintf("read %d via %s", op.Value, op.Via)
	},
}

// Read takes in a history and gives the operations of each key that must be explained.
//
//	ok       happened between call and return
//	unknown  a write may have happened at any time after its call, or never; a read says nothing
//	fail     did not happen, and must not be seen (with errorsUnknown: as unknown)
//
// Without outcome (the short form): ok where it has a return, else unknown.
func Read(in io.Reader, errorsUnknown bool) ([]Key, error) {
	byKey := map[string][]Op{}
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 1<<16), 1<<20)
	for number := 1; lines.Scan(); number++ {
		if strings.TrimSpace(lines.Text()) == "" {
			continue
		}
		op := Op{line: number}
		if err := json.Unmarshal(lines.Bytes(), &op); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if op.Kind == "note" {
			continue
		}
		if err := op.check(); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if op.Outcome == "fail" && errorsUnknown {
			op.Outcome = "unknown"
		}
		byKey[op.Key] = append(byKey[op.Key], op)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	var keys []Key
	for name, ops := range byKey {
		if err := distinct(ops); err != nil {
			return nil, fmt.Errorf("key %s: %w", name, err)
		}
		keys = append(keys, Key{Name: name, Operations: simplify(ops)})
	}
	sort.Slice(keys, func(i, j int) bool { return keys[i].Name < keys[j].Name })
	return keys, nil
}

func (op *Op) check() error {
	if op.Kind != "read" && op.Kind != "write" {
		return fmt.Errorf("kind: found %q, expected read, write or note", op.Kind)
	}
	if op.Kind == "write" && op.Value == 0 {
		return fmt.Errorf("a write of 0: 0 is what is there before the first write")
	}
	if op.Outcome == "" {
		op.Outcome = "ok"
		if op.Return == 0 {
			op.Outcome = "unknown"
		}
	}
	switch op.Outcome {
	case "ok", "fail":
		if op.Return < op.Call {
			return fmt.Errorf("outcome %s, returned at %d, called at %d", op.Outcome, op.Return, op.Call)
		}
	case "unknown":
	default:
		return fmt.Errorf("outcome: found %q, expected ok, fail or unknown", op.Outcome)
	}
	return nil
}

// distinct checks what the simplification below needs.
func distinct(ops []Op) error {
	seen := map[int64]int{}
	for _, op := range ops {
		if op.Kind != "write" {
			continue
		}
		if line, twice := seen[op.Value]; twice {
			return fmt.Errorf("value %d is written in line %d and in line %d: values must be distinct", op.Value, line, op.line)
		}
		seen[op.Value] = op.line
	}
	return nil
}

// simplify leaves out what needs no explanation, and bounds the rest, without changing the verdict:
//
//   - a failed operation did not happen, an unknown read says nothing;
//   - an unknown write that no read returned can always be put at the very end, so it is left out;
//   - an unknown write that was read took effect before the first such read returned.
//
// Without it each unknown write is concurrent with all that follows, and the search doubles with each of them.
func simplify(ops []Op) []porcupine.Operation {
	firstRead := map[int64]int64{}
	for _, op := range ops {
		if op.Kind == "read" && op.Outcome == "ok" {
			if at, seen := firstRead[op.Value]; !seen || op.Return < at {
				firstRead[op.Value] = op.Return
			}
		}
	}
	var out []porcupine.Operation
	for _, op := range ops {
		returned := op.Return
		switch op.Outcome {
		case "fail":
			continue
		case "unknown":
			at, seen := firstRead[op.Value]
			if op.Kind == "read" || !seen {
				continue
			}
			if at < op.Call {
				// Read before it was called: let the search refuse it.
				at = math.MaxInt64
			}
			returned = at
		}
		out = append(out, porcupine.Operation{ClientId: op.Client, Input: op, Output: op.Value, Call: op.Call, Return: returned})
	}
	return out
}

// Around prints the operations near the first one that fits no order.
func (key Key) Around(info porcupine.LinearizationInfo) string {
	longest := 0
	for _, partition := range info.PartialLinearizationsOperations() {
		for _, order := range partition {
			longest = max(longest, len(order))
		}
	}
	ops := append([]porcupine.Operation(nil), key.Operations...)
	sort.Slice(ops, func(i, j int) bool { return ops[i].Return < ops[j].Return })
	text := fmt.Sprintf("  at most %d of %d operations have an order; those that ended around there:\n", longest, len(ops))
	for i := max(0, longest-8); i < min(len(ops), longest+4); i++ {
		op := ops[i].Input.(Op)
		ended := fmt.Sprintf("%.3f", float64(op.Return)/1e6)
		if op.Return == 0 {
			ended = "?"
		}
		text += fmt.Sprintf("  line %d: client %d %-5s %d via %s, %.3f to %s ms\n",
			op.line, op.Client, op.Kind, op.Value, op.Via, float64(op.Call)/1e6, ended)
	}
	return text
}

func fileName(key string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' {
			return r
		}
		return '-'
	}, key)
}
