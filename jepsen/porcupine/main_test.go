package main

import (
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// Hand-made histories of one key.
var stories = []struct {
	name, model, history string
	want                 porcupine.CheckResult
}{
	{"what was written is read", "register",
		`{"kind":"write","value":1,"call":1,"return":2} {"kind":"read","value":1,"call":3,"return":4}`, porcupine.Ok},
	{"a lost write", "register",
		`{"kind":"write","value":1,"call":1,"return":2} {"kind":"read","value":0,"call":3,"return":4}`, porcupine.Illegal},
	{"a stale read", "register",
		`{"kind":"write","value":1,"call":1,"return":2} {"kind":"write","value":2,"call":3,"return":4} {"kind":"read","value":1,"call":5,"return":6}`,
		porcupine.Illegal},
	{"an unknown write that shows late", "register",
		`{"kind":"write","value":1,"call":1} {"kind":"read","value":0,"call":3,"return":4} {"kind":"read","value":1,"call":5,"return":6}`,
		porcupine.Ok},

	{"who holds the grant writes", "fenced",
		`{"kind":"grant","epoch":5,"call":1,"return":2} {"kind":"write","epoch":5,"value":1,"call":3,"return":4} {"kind":"read","value":1,"call":5,"return":6}`,
		porcupine.Ok},
	{"a write succeeds after a newer grant", "fenced",
		`{"kind":"grant","epoch":5,"call":1,"return":2} {"kind":"grant","epoch":6,"call":3,"return":4} {"kind":"write","epoch":5,"value":1,"call":5,"return":6}`,
		porcupine.Illegal},
	{"an epoch goes back", "fenced",
		`{"kind":"grant","epoch":6,"call":1,"return":2} {"kind":"grant","epoch":5,"call":3,"return":4}`, porcupine.Illegal},
	{"a loser's write without an answer has no effect", "fenced",
		`{"kind":"grant","epoch":5,"call":1,"return":2} {"kind":"grant","epoch":6,"call":3,"return":4} {"kind":"write","epoch":5,"value":1,"call":5}
		 {"kind":"read","value":0,"call":7,"return":8}`, porcupine.Ok},
	{"a loser's write without an answer is seen", "fenced",
		`{"kind":"grant","epoch":5,"call":1,"return":2} {"kind":"grant","epoch":6,"call":3,"return":4} {"kind":"write","epoch":5,"value":1,"call":5}
		 {"kind":"read","value":1,"call":7,"return":8}`, porcupine.Illegal},
	{"a write without an answer lands before the newer grant", "fenced",
		`{"kind":"grant","epoch":5,"call":1,"return":2} {"kind":"write","epoch":5,"value":1,"call":3} {"kind":"grant","epoch":6,"call":5,"return":6}
		 {"kind":"read","value":1,"call":7,"return":8}`, porcupine.Ok},
	{"a write without an answer lands after the newer grant", "fenced",
		`{"kind":"grant","epoch":5,"call":1,"return":2} {"kind":"write","epoch":5,"value":1,"call":3} {"kind":"grant","epoch":6,"call":5,"return":6}
		 {"kind":"read","value":0,"call":7,"return":8} {"kind":"read","value":1,"call":9,"return":10}`, porcupine.Illegal},
	{"a write without an answer, in the epoch that still holds", "fenced",
		`{"kind":"grant","epoch":5,"call":1,"return":2} {"kind":"write","epoch":5,"value":1,"call":3}
		 {"kind":"read","value":0,"call":7,"return":8} {"kind":"read","value":1,"call":9,"return":10}`, porcupine.Ok},
}

func TestStories(t *testing.T) {
	for _, story := range stories {
		ops, _, err := read(strings.NewReader(story.history))
		if err != nil {
			t.Fatalf("%s: %v", story.name, err)
		}
		if got := judge(story.model, ops[0], time.Second); got != story.want {
			t.Errorf("%s: found %s, expected %s", story.name, got, story.want)
		}
	}
}
