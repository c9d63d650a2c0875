// Judges a history with Porcupine: MODEL FILE, where FILE holds JSON lines
//
//	{"client", "key", "kind", "value", "epoch", "call", "return"}
//
// A line without "return" is an operation with unknown outcome. Keys are judged one by one.
//
//	register  kinds write and read: the value last written, 0 before the first write
//	fenced    also grant: from a grant of an epoch on, only writes of that epoch have an effect (R2, R6)
//
// Exit codes: 0 linearizable, 1 not, 2 not decided in time or not understood.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

type op struct {
	Client int    `json:"client"`
	Key    int    `json:"key"`
	Kind   string `json:"kind"`
	Value  int    `json:"value"`
	Epoch  int    `json:"epoch"`
	Call   int64  `json:"call"`
	Return int64  `json:"return"`

	unknown bool
}

type fenced struct{ epoch, value int }

var models = map[string]porcupine.Model{
	"register": {
		Init: func() any { return 0 },
		Step: func(state, in, _ any) (bool, any) {
			if o := in.(op); o.Kind == "write" {
				return true, o.Value
			} else {
				return o.Value == state.(int), state
			}
		},
	},
	"fenced": {
		Init: func() any { return fenced{} },
		Step: func(state, in, _ any) (bool, any) {
			s, o := state.(fenced), in.(op)
			switch o.Kind {
			case "grant":
				return o.Epoch > s.epoch, fenced{o.Epoch, s.value}
			case "write":
				if o.Epoch == s.epoch {
					return true, fenced{s.epoch, o.Value}
				}
				// Here an operation of unknown outcome has no effect.
				return o.unknown, s
			default:
				return o.Value == s.value, s
			}
		},
	},
}

// settle ends the unknown writes of an epoch when a grant of a newer one has returned: from then on they can have no
// effect, so this forbids nothing, and it bounds the search.
func settle(history []op) {
	for i := range history {
		if o := &history[i]; o.unknown && o.Kind == "write" {
			for _, grant := range history {
				if grant.Kind != "grant" || grant.unknown || grant.Epoch <= o.Epoch {
					continue
				}
				end := grant.Return + 1
				if end <= o.Call {
					end = o.Call + 1
				}
				if end < o.Return {
					o.Return = end
				}
			}
		}
	}
}

// read returns the operations of each key, and their number.
func read(from io.Reader) (map[int][]op, int, error) {
	ops := map[int][]op{}
	count := 0
	for dec := json.NewDecoder(from); ; count++ {
		var o op
		if err := dec.Decode(&o); err == io.EOF {
			return ops, count, nil
		} else if err != nil {
			return nil, count, err
		}
		if o.Return == 0 {
			o.Return, o.unknown = math.MaxInt64, true
		}
		ops[o.Key] = append(ops[o.Key], o)
	}
}

// judge checks the history of one key.
func judge(model string, known []op, limit time.Duration) porcupine.CheckResult {
	if model == "fenced" {
		settle(known)
	}
	history := make([]porcupine.Operation, 0, len(known))
	for _, o := range known {
		history = append(history, porcupine.Operation{
			ClientId: o.Client, Input: o, Output: o.Value, Call: o.Call, Return: o.Return})
	}
	return porcupine.CheckOperationsTimeout(models[model], history, limit)
}

func stop(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	os.Exit(2)
}

func main() {
	if len(os.Args) != 3 {
		stop("expected: MODEL FILE")
	}
	if _, known := models[os.Args[1]]; !known {
		stop("model: found %q, expected register or fenced", os.Args[1])
	}
	file, err := os.Open(os.Args[2])
	if err != nil {
		stop("%v", err)
	}
	ops, count, err := read(file)
	if err != nil {
		stop("%s: %v", os.Args[2], err)
	}
	began := time.Now()
	var bad, open []int
	for key, history := range ops {
		switch judge(os.Args[1], history, time.Minute) {
		case porcupine.Illegal:
			bad = append(bad, key)
		case porcupine.Unknown:
			open = append(open, key)
		}
	}
	sort.Ints(bad)
	sort.Ints(open)
	fmt.Printf("%d operations on %d keys in %v", count, len(ops), time.Since(began).Round(time.Millisecond))
	switch {
	case len(bad) > 0:
		fmt.Printf("; not linearizable: %v\n", bad)
		os.Exit(1)
	case len(open) > 0:
		fmt.Printf("; not decided within a minute: %v\n", open)
		os.Exit(2)
	}
	fmt.Println("; linearizable")
}
