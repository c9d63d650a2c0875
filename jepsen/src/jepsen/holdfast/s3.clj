(ns jepsen.holdfast.s3
  "An S3 server (versitygw over a directory) in its own namespace, and a nemesis's
  operations on it. With a build of between/ it has a proxy that answers 503 on
  request.

      gateways -> :7070 between -> :7071 versitygw      (:7072 controls between)
      gateways -> :7070 versitygw                       without --between"
  (:require [clojure.java.io :as io]
            [clojure.java.shell :refer [sh]]
            [jepsen.util :as util]
            [jepsen.holdfast [between :as between]
                             [netns :as netns]])
  (:import (java.net InetSocketAddress Socket)
           (java.util.concurrent TimeUnit)))

(def port 7070)
(def behind-port 7071)
(def control-port 7072)

(defn- await-port!
  [test node p]
  (util/await-fn
    #(with-open [s (Socket.)]
       (.connect s (InetSocketAddress. ^String (get (:addresses test) node) (int p))
                 500))
    {:retry-interval 100, :timeout 20000, :log-interval 5000}))

(defn- spawn!
  "A process in the node's namespace: `ip netns exec` becomes it, so its pid is
  the process's own."
  ^Process [test node log env argv]
  (let [b (doto (ProcessBuilder.
                  ^java.util.List (into ["ip" "netns" "exec" node] argv))
            (.redirectErrorStream true)
            (.redirectOutput (java.lang.ProcessBuilder$Redirect/appendTo
                               (io/file (:dir test) log))))]
    (doseq [[k v] env] (.put (.environment b) k v))
    (.start b)))

(defn- server!
  [test node]
  (let [p (if (:between test) behind-port port)
        s (spawn! test node "s3.log"
                  {"ROOT_ACCESS_KEY" (:s3-access-key test)
                   "ROOT_SECRET_KEY" (:s3-secret-key test)}
                  ["versitygw" "--keep-alive" "--port" (str ":" p)
                   "posix" (str (:dir test) "/store")])]
    (await-port! test node p)
    s))

(defn start!
  "Starts it on `node` with an empty bucket `holdfast`: {:node :server :between}."
  [test node]
  (.mkdirs (io/file (:dir test) "store" "holdfast"))
  (let [server (server! test node)]
    (cond-> {:node node, :server server}
      (:between test)
      (assoc :between
             (let [b (spawn! test node "s3-between.log" {}
                             [(:between test) "-http"
                              "-listen" (str ":" port)
                              "-to" (str "127.0.0.1:" behind-port)
                              "-control" (str ":" control-port)])]
               (await-port! test node port)
               (await-port! test node control-port)
               b)))))

(defn- end!
  [^Process p]
  (.destroy p)
  (when-not (.waitFor p 5 TimeUnit/SECONDS)
    (.destroyForcibly p)))

(defn stop!
  [{:keys [server between]}]
  (run! end! (remove nil? [server between])))

(defn- signal! [^Process p sig]
  (sh "kill" sig (str (.pid p))))

(defn- state-letter
  "As the kernel has it: R, S, T for stopped; nil if there is no such process."
  [^Process p]
  ; Files of /proc cannot be slurped: they do not say how long they are.
  (second (re-find #"(?m)^State:\s+(\S)"
                   (:out (sh "cat" (str "/proc/" (.pid p) "/status"))))))

(defn- down!
  [test _ state]
  (let [^Process p (:server @(:s3 test))]
    (.destroyForcibly p)
    (let [gone? (.waitFor p 5 TimeUnit/SECONDS)]
      [state {:pid (.pid p), :hit? gone?}])))

(defn- up!
  [test state]
  (let [{:keys [node]} @(:s3 test)
        p (server! test node)]
    (swap! (:s3 test) assoc :server p)
    [state {:pid (.pid p)}]))

(defn- freeze!
  [test _ state]
  (let [p (:server @(:s3 test))]
    (signal! p "-STOP")
    [state {:state (state-letter p), :hit? (= "T" (state-letter p))}]))

(defn- thaw!
  [test state]
  (let [p (:server @(:s3 test))]
    (signal! p "-CONT")
    [state {:state (state-letter p)}]))

(defn- turn!
  [test query]
  (between/turn! (get (:addresses test) (:node @(:s3 test))) control-port query))

(defn- refuse!
  [test _ state]
  [(assoc state :refused-before (:refused (turn! test (if (= "miss" (:lie test))
                                                   "" "refuse=true")))) {}])

(defn- accept!
  [test state]
  (let [now     (:refused (turn! test "refuse=false"))
        refused (- now (:refused-before state))]
    [(dissoc state :refused-before) {:refused refused, :hit? (pos? refused)}]))

(def faults
  "They leave the gateways alone: all of it must be served from journal and cache
  (R8)."
  {"s3-down" {:doc "SIGKILL of the S3 server, started again at the end"
              :begin down!, :end up!}
   "s3-slow" {:doc "SIGSTOP of the S3 server: requests hang"
              :begin freeze!, :end thaw!}
   "s3-503"  {:doc "every request to the store is answered with 503 SlowDown"
              :begin refuse!, :end accept!}})
