// Judges a history of registers for linearizability, with Porcupine.
//
//	porcupine [-timeout 60s] [-errors-unknown] [-visualize DIR] HISTORY.jsonl
//
// Owns: reading the file format (docs/proof/chaos.md), and the verdict. Does not own: how the history was made, and
// whether it is long enough (an empty history is linearizable).
//
// Exit code: 0 linearizable, 1 not, 2 not decided in time, 3 the file is not a history.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/anishathalye/porcupine"
)

func main() {
	timeout := flag.Duration("timeout", time.Minute, "how long to think about all keys together")
	unknown := flag.Bool("errors-unknown", false, "take an error answer to a write as unknown instead of without effect")
	visualize := flag.String("visualize", "", "folder for one HTML page per key that is not linearizable")
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(3)
	}
	file, err := os.Open(flag.Arg(0))
	if err != nil {
		fail(err)
	}
	keys, err := Read(file, *unknown)
	if err != nil {
		fail(fmt.Errorf("%s: %w", flag.Arg(0), err))
	}
	begun := time.Now()
	bad, undecided, operations := 0, 0, 0
	for _, key := range keys {
		operations += len(key.Operations)
		left := *timeout - time.Since(begun)
		if left <= 0 {
			// Zero would mean no limit at all.
			left = time.Millisecond
		}
		verdict, info := porcupine.CheckOperationsVerbose(register, key.Operations, left)
		switch verdict {
		case porcupine.Ok:
			continue
		case porcupine.Unknown:
			undecided++
			fmt.Printf("undecided: key %s, %d operations\n", key.Name, len(key.Operations))
			continue
		}
		bad++
		fmt.Printf("NOT LINEARIZABLE: key %s, %d operations\n", key.Name, len(key.Operations))
		fmt.Print(key.Around(info))
		if *visualize != "" {
			path := filepath.Join(*visualize, fileName(key.Name)+".html")
			if err := porcupine.VisualizePath(register, info, path); err != nil {
				fmt.Println("  no picture:", err)
			} else {
				fmt.Println("  picture:", path)
			}
		}
	}
	fmt.Printf("%d keys, %d operations judged in %s: %d not linearizable, %d undecided\n",
		len(keys), operations, time.Since(begun).Round(time.Millisecond), bad, undecided)
	switch {
	case bad > 0:
		os.Exit(1)
	case undecided > 0:
		os.Exit(2)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "error:", err)
	os.Exit(3)
}
