(ns jepsen.holdfast.final-test
  "What it means that the last reads came, or did not."
  (:require [clojure.string :as str]
            [clojure.test :refer [deftest is testing]]
            [jepsen [checker :as checker]
                    [generator :as gen]
                    [independent :as independent]]
            [jepsen.generator.test :as simulated]
            [jepsen.holdfast [append :as append]
                             [final :as final]
                             [flush-kill :as flush-kill]
                             [hand :as hand]
                             [lease :as lease]
                             [order :as order]
                             [register :as register]]))

(def acknowledged
  "One batch of `flush-kill`, and a fault after it."
  [(hand/client 1 0 :add :ok 7 :asked 7)
   (hand/nemesis 5 :begin 0.5 {:asked "unsynced-all", :served? false})])

(def unread (for [s [20 40 60]] (hand/client s 0 :read :fail nil :error [:gone])))

(defn- flush-kill [& parts]
  (checker/check (flush-kill/checker) {} (apply hand/history parts) {}))

(deftest what-cannot-be-read-back-is-lost
  (let [{:keys [valid? final]} (flush-kill acknowledged (hand/all-well 10 unread))]
    (is (false? valid?))
    (is (str/includes? (:why final) "nothing could be read back")))
  (testing "and what is read is judged as ever"
    (let [read (fn [whole] (flush-kill acknowledged
                                       (hand/all-well 10 (hand/client 20 0 :read :ok
                                                                      {:whole whole, :part #{}
                                                                       :wrong 0}))))]
      (is (true? (:valid? (read #{7}))))
      (is (= [false 1] ((juxt :valid? :lost-count) (read #{})))))))

(deftest a-run-that-does-not-know-its-own-faults-does-not-accuse
  (doseq [[what words parts]
          [["the last heal failed" "the nemesis failed at end"
            [acknowledged (hand/all-well 10 unread :end {:error "indeterminate"})]]
           ["a fault failed half way" "the nemesis failed at begin kill"
            [(hand/nemesis 2 :begin 0.5 {:asked "kill", :error "indeterminate"})
             acknowledged (hand/all-well 10 unread)]]
           ["no majority was left" "no majority"
            [acknowledged (hand/all-well 10 unread :end {:served? false})]]
           ["a gateway had ended" "had ended by itself: g2"
            [acknowledged (hand/all-well 10 unread
                                         :alive {:value {"g1" true, "g2" false}})]]
           ["nobody looked" "nobody looked"
            [acknowledged (hand/nemesis 10 :end 0.5 {:served? true}) unread]]
           ["it was never ended" "never ended" [acknowledged unread]]
           ["nobody makes faults" "nobody made faults"
            [(hand/client 1 0 :add :ok 7) unread]]
           ["nobody asked" "nobody asked" [acknowledged (hand/all-well 10 [])]]]
          :let [{:keys [valid? final]} (flush-kill parts)]]
    (is (= :unknown valid?) what)
    (is (str/includes? (:why final) words) what))
  (testing "one whose journal was spoilt may stay away"
    (is (false? (:valid? (flush-kill acknowledged
                                     (hand/all-well 10 unread
                                                    :alive {:value  {"g1" true, "g2" false}
                                                            :spoilt #{"g2"}})))))))

(deftest without-an-acknowledged-write-nothing-is-lost
  (is (= :unknown (:valid? (flush-kill (hand/client 1 0 :add :info 7)
                                       (hand/all-well 10 unread))))))

(defn- read-place [s k type'] (hand/client s 0 :read type' (independent/tuple k 1)))

(deftest places-that-nobody-could-read-in-the-end
  (let [wrote (for [k [0 1]] (hand/client (inc k) 0 :write :ok (independent/tuple k 1)))
        early (hand/client 4 0 :read :ok (independent/tuple 0 1))
        judge (fn [& reads]
                (checker/check (register/final-checker) {}
                               (hand/history wrote early (hand/all-well 10 reads)) {}))]
    (is (false? (:valid? (judge (read-place 20 0 :fail) (read-place 21 1 :fail)))))
    (is (true? (:valid? (judge (read-place 20 0 :fail) (read-place 21 0 :ok)
                               (read-place 22 1 :ok)))))
    (let [{:keys [valid? why]} (judge (read-place 20 0 :ok) (read-place 21 1 :fail))]
      (is (= :unknown valid?))
      (is (= "1 of 2 were not read in the end" why)))))

(deftest nobody-could-read-what-the-last-owner-wrote
  (let [judge (fn [type']
                (:valid? (checker/check (lease/final-checker) {}
                                        (hand/history
                                          (hand/client 1 0 :write :ok 3 :epoch 4)
                                          (hand/all-well 10 (hand/client 20 0 :read type' 3)))
                                        {})))]
    (is (false? (judge :fail)))
    (is (true? (judge :ok)))))

(deftest a-ledger-that-nobody-could-read
  (let [judge (fn [type']
                (:valid? (checker/check (append/ledger-checker) {}
                                        (hand/history
                                          (hand/client 1 0 :add :ok 3)
                                          (hand/all-well 10 (hand/client 20 0 :read type' [3])))
                                        {})))]
    (is (false? (judge :fail)))
    (is (true? (judge :ok)))))

(defn- blank [] (vec (repeat 3 (vec (repeat 64 0)))))

(defn- shows
  "What is seen of a writer whose numbers up to n are there, n at most 16."
  [n]
  (reduce (fn [seen i] (assoc-in seen [0 (dec i)] i)) (blank) (range 1 (inc n))))

(defn- order [& parts]
  (checker/check (order/checker) {} (apply hand/history parts) {}))

(deftest order-is-judged-in-its-parts
  (let [write    (fn [s w] (hand/client s w :write :ok [1 16] :writer w))
        back     (fn [s w n] (hand/client s w :read-back :ok (shows n) :writer w))
        snapshot (fn [s & of-each]
                   (hand/client s 2 :snapshot :ok {:name "s0", :readings {"s0" (mapv shows of-each)}}))
        fault    (hand/nemesis 5 :begin 0.5 {:asked "kill", :served? true})
        run      (fn [taken & reads]
                   (order (write 1 0) (write 2 1) taken fault (hand/all-well 10 reads)))
        verdicts (fn [r] (update-vals (select-keys r [:read-backs :snapshots :between-writers :final])
                                      :valid?))]
    (is (true? (:valid? (run (snapshot 3 16 16) (back 20 0 16) (back 21 1 16)))))
    (is (= {:read-backs true, :snapshots false, :between-writers false, :final true}
           (verdicts (run (snapshot 3 0 16) (back 20 0 16) (back 21 1 16)))))
    (testing "while neither is over, only both together show it"
      (let [slow (fn [s w] (-> (write s w) (update-in [1 :time] + 2000000000)))
            r    (order (write 1 0)
                        ; Begun before the first one's answer was in: it may show any of it.
                        (assoc-in (snapshot 0.9 0 1) [1 :time] 3500000000)
                        (slow 2 1) fault
                        (hand/all-well 10 [(back 20 0 16) (back 21 1 16)]))]
        (is (= {:read-backs true, :snapshots true, :between-writers false, :final true}
               (verdicts r)))
        (is (false? (:valid? r)))
        (is (= [0] (map :writer (:errors (:between-writers r)))))))
    (testing "what nobody could read back in the end"
      (let [none (fn [s w] (hand/client s w :read-back :fail nil :writer w))]
        (is (false? (:valid? (:final (run (snapshot 3 16 16) (none 20 0) (none 21 1))))))
        (is (= :unknown (:valid? (:final (run (snapshot 3 16 16) (back 20 0 16) (none 21 1))))))))))

;; How they are asked for

(defn- asked
  "What a generator asks of three clients where `complete` says how each try ends."
  [generator complete]
  (->> (simulated/simulate (simulated/n+nemesis-context 3) generator
                           (fn [_ op] (assoc (complete op) :time (+ 1000000 (:time op)))))
       simulated/invocations))

(deftest the-last-reads-are-tried-again-and-not-for-ever
  (let [tries (atom 0)
        third #(assoc % :type (if (= 3 (swap! tries inc)) :ok :fail))
        never #(assoc % :type :fail)]
    (is (= [0 0 0] (map :process (asked (final/by-one {:f :read}) third))))
    (let [n (count (asked (final/by-one {:f :read}) never))]
      (is (= n (/ final/patience-s final/pause-s))))
    (let [ops  (for [k (range 7)] {:f :read, :value k})
          gen' (fn [] (final/by-each-its-own 3 ops))]
      (is (= (cons 0 (range 7)) (sort (map :value (asked (gen') #(assoc % :type :ok))))))
      (is (= {0 0, 3 0, 6 0, 1 1, 4 1, 2 2, 5 2}
             (into {} (map (juxt :value :process)) (asked (gen') #(assoc % :type :ok)))))
      (let [patient (/ final/patience-s final/pause-s)]
        (is (= (assoc (zipmap (range 7) (repeat 5)) 0 (+ patient 5))
               (frequencies (map :value (asked (gen') never))))
            "whoever refuses at once is asked for as long as who does not answer"))
      (is (= [] (asked (final/by-each-its-own 3 []) never))))))
