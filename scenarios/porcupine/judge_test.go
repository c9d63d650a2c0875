package main

import (
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// Hand-made histories: each line "client kind value call return [outcome]", all of one key.
var stories = []struct {
	name, history string
	want          porcupine.CheckResult
}{
	{"nothing at all", ``, porcupine.Ok},
	{"zero before the first write", `0 read 0 1 2`, porcupine.Ok},
	{"a value from nowhere", `0 read 7 1 2`, porcupine.Illegal},
	{"what was written is read", "0 write 1 1 2\n1 read 1 3 4", porcupine.Ok},
	{"an acknowledged write is lost", "0 write 1 1 2\n1 read 0 3 4", porcupine.Illegal},
	{"an acknowledged write is lost at the end", "0 write 1 1 2\n0 write 2 3 4\n1 read 2 5 6\n1 read 1 7 8", porcupine.Illegal},
	{"a stale read after another's write", "0 write 1 1 2\n1 write 2 3 4\n0 read 1 5 6", porcupine.Illegal},
	{"old or new while a write is under way", "0 write 1 1 2\n1 write 2 3 9\n0 read 1 4 5\n2 read 2 6 7", porcupine.Ok},
	{"new, then old, while a write is under way", "0 write 1 1 2\n1 write 2 3 9\n0 read 2 4 5\n2 read 1 6 7", porcupine.Illegal},
	{"an unknown write that shows later", "0 write 1 1 2\n1 write 2 3 0 unknown\n0 read 1 5 6\n0 read 2 7 8", porcupine.Ok},
	{"an unknown write that never shows", "0 write 1 1 2\n1 write 2 3 0 unknown\n0 read 1 5 6", porcupine.Ok},
	{"an unknown write that shows and is gone again", "0 write 1 1 2\n1 write 2 3 0 unknown\n0 read 2 5 6\n0 read 1 7 8", porcupine.Illegal},
	{"an unknown write lands after a later write", "0 write 1 1 0 unknown\n1 write 2 3 4\n1 read 2 5 6\n1 read 1 7 8", porcupine.Ok},
	{"an unknown write that is read before it was called", "0 read 2 1 2\n1 write 2 3 0 unknown", porcupine.Illegal},
	{"an unknown read says nothing", "0 write 1 1 2\n1 read 0 3 0 unknown", porcupine.Ok},
	{"a refused write must not be seen", "0 write 1 1 2\n1 write 2 3 4 fail\n0 read 2 5 6", porcupine.Illegal},
	{"a refused write that is not seen", "0 write 1 1 2\n1 write 2 3 4 fail\n0 read 1 5 6", porcupine.Ok},
	{"two writers, two readers that disagree on the order", "0 write 1 1 9\n1 write 2 1 9\n2 read 1 10 11\n3 read 2 12 13", porcupine.Illegal},
	{"the short form: no outcome, no return", "0 write 1 1 2\n1 write 2 3 0\n0 read 2 5 6", porcupine.Ok},
}

func asJSON(history string) string {
	var out strings.Builder
	for _, line := range strings.Split(strings.TrimSpace(history), "\n") {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		out.WriteString(`{"client":` + words[0] + `,"kind":"` + words[1] + `","key":"k","value":` + words[2] + `,"call":` + words[3])
		if words[4] != "0" {
			out.WriteString(`,"return":` + words[4])
		}
		if len(words) > 5 {
			out.WriteString(`,"outcome":"` + words[5] + `"`)
		}
		out.WriteString("}\n")
	}
	return out.String()
}

func judge(t *testing.T, history string, errorsUnknown bool) porcupine.CheckResult {
	t.Helper()
	keys, err := Read(strings.NewReader(asJSON(history)), errorsUnknown)
	if err != nil {
		t.Fatal(err)
	}
	worst := porcupine.Ok
	for _, key := range keys {
		verdict, info := porcupine.CheckOperationsVerbose(register, key.Operations, time.Minute)
		if verdict != porcupine.Ok {
			worst = verdict
			t.Log(key.Around(info))
		}
	}
	return worst
}

func TestStories(t *testing.T) {
	for _, story := range stories {
		t.Run(story.name, func(t *testing.T) {
			if got := judge(t, story.history, false); got != story.want {
				t.Errorf("got %v, want %v", got, story.want)
			}
		})
	}
}

func TestErrorsAsUnknown(t *testing.T) {
	seen := "0 write 1 1 2\n1 write 2 3 4 fail\n0 read 2 5 6"
	if judge(t, seen, false) != porcupine.Illegal || judge(t, seen, true) != porcupine.Ok {
		t.Error("a refused write that is seen is a lie only while errors mean that nothing happened")
	}
}

// The simplification must not change a verdict: every small history, with and without it.
func TestSimplifyKeepsTheVerdict(t *testing.T) {
	seen := map[porcupine.CheckResult]int{}
	for code := 0; code < 4*4*3*3*3; code++ {
		n := code
		next := func(of int) int { v := n % of; n /= of; return v }
		called, ended, early, late, last := next(4), next(4), next(3), next(3), next(3)
		ops := []Op{
			{Client: 0, Kind: "write", Value: 1, Call: 2, Return: 4, Outcome: "ok"},
			{Client: 1, Kind: "write", Value: 2, Call: int64(1 + 2*called), Outcome: "unknown"},
			{Client: 2, Kind: "read", Value: int64(early), Call: 3, Return: int64(4 + 2*ended), Outcome: "ok"},
			{Client: 3, Kind: "read", Value: int64(late), Call: 7, Return: 8, Outcome: "ok"},
			{Client: 3, Kind: "read", Value: int64(last), Call: 9, Return: 10, Outcome: "ok"},
		}
		var plain []porcupine.Operation
		for _, op := range ops {
			returned := op.Return
			if op.Outcome == "unknown" {
				returned = 1 << 40
			}
			plain = append(plain, porcupine.Operation{ClientId: op.Client, Input: op, Output: op.Value, Call: op.Call, Return: returned})
		}
		want := porcupine.CheckOperationsTimeout(register, plain, time.Minute)
		got := porcupine.CheckOperationsTimeout(register, simplify(ops), time.Minute)
		if got != want {
			t.Fatalf("simplified %v, plain %v: %+v", got, want, ops)
		}
		seen[want]++
	}
	if seen[porcupine.Ok] < 20 || seen[porcupine.Illegal] < 20 {
		t.Errorf("too few of one kind: %v", seen)
	}
}

func TestWhatIsNoHistory(t *testing.T) {
	for _, text := range []string{
		`not json`,
		`{"client":0,"kind":"cas","key":"k","value":1,"call":1,"return":2}`,
		`{"client":0,"kind":"write","key":"k","value":0,"call":1,"return":2}`,
		`{"client":0,"kind":"write","key":"k","value":1,"call":5,"return":2}`,
		`{"client":0,"kind":"write","key":"k","value":1,"call":1,"return":2,"outcome":"maybe"}`,
		`{"client":0,"kind":"write","key":"k","value":1,"call":1,"outcome":"ok"}`,
		`{"client":0,"kind":"write","key":"k","value":1,"call":1,"return":2}` + "\n" + `{"client":1,"kind":"write","key":"k","value":1,"call":3,"return":4}`,
	} {
		if _, err := Read(strings.NewReader(text), false); err == nil {
			t.Errorf("taken as a history: %s", text)
		}
	}
}
