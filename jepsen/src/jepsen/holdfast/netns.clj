(ns jepsen.holdfast.netns
  "Nodes that are network namespaces of this machine: a Remote that runs a
  node's commands with `ip netns exec`, and the bridge and veth pairs that join
  them. No sshd, no containers.

  A node's link is called eth0 inside its namespace. The bridge's own address
  makes every node reachable from the process that runs Jepsen, also while the
  nodes cannot reach one another: clients are never cut off by a partition, so
  a gateway on the wrong side of one is asked all the time.

  Namespaces share files, clock and process table. So each node has a directory
  and a pid file of its own, and nothing is ever found or ended by name."
  (:require [clojure.java.io :as io]
            [clojure.java.shell :refer [sh]]
            [clojure.string :as str]
            [clj-commons.slingshot :refer [throw+]]
            [jepsen.control.core :as core]))

(def prefix "First three bytes of the nodes' addresses." "10.99.0.")
(def bridge "br-holdfast")

(defn- locally
  "Runs argv here. A map of :exit, :out and :err."
  [argv in]
  (apply sh (concat argv (when in [:in in]))))

(defn- must!
  [argv]
  (let [{:keys [exit] :as res} (locally argv nil)]
    (if (zero? exit)
      (:out res)
      (throw+ (assoc res :type ::command-failed, :argv argv)
              nil "%s: %s" (str/join " " argv) (:err res)))))

(defn- copy! [argv froms to]
  (doseq [from (flatten [froms])]
    (must! (concat argv ["cp" "-r" (str from) (str to)]))))

(defrecord NetnsRemote [node]
  core/Remote
  (connect [this conn-spec] (assoc this :node (:host conn-spec)))
  (disconnect! [this] (assoc this :node nil))
  (execute! [_ _ctx action]
    (merge action
           (locally ["ip" "netns" "exec" node "bash" "-c" (:cmd action)]
                    (:in action))))
  (upload! [_ _ctx local-paths remote-path _opts]
    (copy! ["ip" "netns" "exec" node] local-paths remote-path))
  (download! [_ _ctx remote-paths local-path _opts]
    (copy! [] remote-paths local-path)))

(def remote (->NetnsRemote nil))

(defn addresses
  "{node address}, numbered in the order given."
  [nodes]
  (into {} (map-indexed (fn [i n] [n (str prefix (+ 11 i))]) nodes)))

(defn down!
  "Takes away what up! made. Fine if there is nothing."
  [nodes]
  (doseq [n nodes]
    (locally ["ip" "netns" "del" n] nil)
    ; The kernel takes a namespace apart some time later.
    (locally ["ip" "link" "del" (str "ve-" n)] nil)
    (io/delete-file (io/file "/etc/netns" n "hosts") true)
    (io/delete-file (io/file "/etc/netns" n) true))
  (locally ["ip" "link" "del" bridge] nil))

(defn up!
  "Makes the namespaces and joins them. Gives {node address}."
  [nodes]
  (down! nodes)
  (let [addr  (addresses nodes)
        hosts (str "127.0.0.1 localhost\n"
                   (str/join (map (fn [[n a]] (str a " " n "\n")) addr)))]
    (must! ["ip" "link" "add" bridge "type" "bridge"])
    (must! ["ip" "addr" "add" (str prefix "1/24") "dev" bridge])
    (must! ["ip" "link" "set" bridge "up"])
    (doseq [n nodes]
      ; `ip netns exec NAME` lays /etc/netns/NAME over /etc: node names resolve
      ; inside the nodes alone.
      (let [f (io/file "/etc/netns" n "hosts")]
        (io/make-parents f)
        (spit f hosts))
      (must! ["ip" "netns" "add" n])
      (must! ["ip" "link" "add" (str "ve-" n) "type" "veth"
              "peer" "name" "eth0" "netns" n])
      (must! ["ip" "link" "set" (str "ve-" n) "master" bridge "up"])
      (must! ["ip" "-n" n "link" "set" "lo" "up"])
      (must! ["ip" "-n" n "addr" "add" (str (addr n) "/24") "dev" "eth0"])
      (must! ["ip" "-n" n "link" "set" "eth0" "up"]))
    addr))
