package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// listening passes each connection to between, with the given far end.
func listening(t *testing.T, between func(net.Conn, string), far string) string {
	t.Helper()
	in, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close() })
	go func() {
		for {
			client, err := in.Accept()
			if err != nil {
				return
			}
			go between(client, far)
		}
	}()
	return in.Addr().String()
}

func turn(t *testing.T, query string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	control(w, httptest.NewRequest("GET", "/?"+query, nil))
	return w.Code, w.Body.String()
}

func TestARequestIsRefusedOrDoneAsItWasSigned(t *testing.T) {
	type seen struct{ target, host, agent, body string }
	var last atomic.Value
	far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		last.Store(seen{r.RequestURI, r.Host, r.Header.Get("User-Agent"), string(body)})
		w.WriteHeader(http.StatusPreconditionFailed)
		fmt.Fprint(w, "done")
	}))
	defer far.Close()
	at := listening(t, requestsBetween, strings.TrimPrefix(far.URL, "http://"))
	ask := func() (int, string) {
		req, _ := http.NewRequest("PUT", "http://"+at+"/b/a%2Fb%20c?x=%2F&y", strings.NewReader("data"))
		req.Header.Set("User-Agent", "me")
		req.Header.Set("Expect", "100-continue")
		reply, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer reply.Body.Close()
		body, _ := io.ReadAll(reply.Body)
		return reply.StatusCode, string(body)
	}
	if code, body := ask(); code != 412 || body != "done" {
		t.Fatalf("found %d %q", code, body)
	}
	want := seen{"/b/a%2Fb%20c?x=%2F&y", at, "me", "data"}
	if got := last.Load().(seen); got != want {
		t.Fatalf("found %v, expected %v", got, want)
	}
	turn(t, "refuse=true")
	last.Store(seen{})
	if code, body := ask(); code != 503 || !strings.Contains(body, "SlowDown") {
		t.Fatalf("found %d %q", code, body)
	}
	if got := last.Load().(seen); got != (seen{}) {
		t.Fatalf("the far end was asked: %v", got)
	}
	turn(t, "refuse=false")
	if code, _ := ask(); code != 412 {
		t.Fatalf("found %d", code)
	}
	if _, said := turn(t, ""); !strings.Contains(said, `"requests":3,"refused":1`) {
		t.Fatalf("found %s", said)
	}
}

func TestBytesComeLateAndInOrder(t *testing.T) {
	far, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	go func() { // Echoes its input.
		c, err := far.Accept()
		if err == nil {
			io.Copy(c, c)
			c.Close()
		}
	}()
	c, err := net.Dial("tcp", listening(t, bytesBetween, far.Addr().String()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	turn(t, "delay=50ms&jitter=20ms")
	defer turn(t, "delay=0s&jitter=0s")
	began := time.Now()
	want := ""
	for i := 0; i < 20; i++ {
		piece := fmt.Sprintf("%02d;", i)
		want += piece
		io.WriteString(c, piece)
	}
	got := make([]byte, len(want))
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
		t.Fatalf("found %q, %v", got, err)
	}
	if took := time.Since(began); took < 100*time.Millisecond {
		t.Fatalf("there and back in %v, expected 100 ms or more", took)
	}
}

func TestTheDoorTellsWhatIsWrong(t *testing.T) {
	for _, query := range []string{"delay=soon", "delay=-1s", "refuse=perhaps"} {
		if code, said := turn(t, query); code != 400 || !strings.Contains(said, "expected") {
			t.Fatalf("%s: found %d %q", query, code, said)
		}
	}
}
