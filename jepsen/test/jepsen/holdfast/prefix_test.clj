(ns jepsen.holdfast.prefix-test
  "Judges prefixes without a cluster, and without Jepsen: `clojure.main` with src and
  test on the class path is enough (README.md)."
  (:require [clojure.test :refer [deftest is run-tests testing]]
            [jepsen.holdfast.prefix :as prefix :refer [contents]]))

(defn- seen
  "As a read-back shows these numbers, written in this order."
  [numbers]
  (let [there (contents numbers)]
    (vec (for [v (range prefix/volumes)]
           (vec (for [s (range prefix/slots)] (get there [v s] 0)))))))

(defn- write [type from index a] {:f :write, :type type, :from from, :index index
                                  :value [a (+ a 15)]})
(defn- read-back [index numbers] {:f :read-back, :type :ok, :index index, :writer 0
                                  :value (seen numbers)})

(def ops
  "1-16 acknowledged, 5 of 17-32 there after an unclear end, 33-48 acknowledged."
  [(write :ok 0 1 1)
   (write :info 2 3 17)
   (read-back 5 (range 1 22))
   (write :ok 10 12 33)])

(def batches (:batches (prefix/judge ops)))

(deftest places-are-each-taken-once-in-a-round
  (let [round (* prefix/volumes prefix/slots)]
    (is (= round (count (set (map prefix/place (range 1 (inc round)))))))
    (is (= (prefix/place 1) (prefix/place (inc round))))))

(deftest a-read-back-is-a-prefix
  (is (= [[5 16]] (:prefixes (prefix/judge ops))))
  (is (empty? (:errors (prefix/judge ops))))
  (is (= [[1 16] [17 21] [33 48]]
         (map (fn [{:keys [numbers]}] [(first numbers) (last numbers)]) batches)))
  (let [hole (remove #{19} (range 1 22))]
    (is (= 1 (count (:errors (prefix/judge [(write :ok 0 1 1) (write :info 2 3 17)
                                            (read-back 5 hole)])))))))

(defn- errors [from by numbers]
  (map (comp first :error)
       (prefix/judge-snapshots batches [{:name "s", :from from, :by by
                                         :seen (contents numbers)}])))

(deftest a-snapshot-is-a-prefix-between-its-call-and-its-answer
  ; While 17-32 were under way: any prefix of the part that took effect.
  (doseq [n (range 16 22)]
    (is (= [] (errors 2 4 (range 1 (inc n))))))
  (is (= [:misses-acknowledged] (errors 2 4 (range 1 16))))
  (is (= [:no-prefix] (errors 2 4 (remove #{7} (range 1 19)))))
  (is (= [:never-written] (errors 2 4 (range 1 23)))
      "numbers that were found missing do not come back")
  (is (= [:shows-what-was-begun-later] (errors 6 9 (concat (range 1 22) [33]))))
  (is (= [] (errors 6 11 (concat (range 1 22) [33]))))
  (is (= [:misses-acknowledged] (errors 13 14 (range 1 22))))
  (is (= [] (errors 13 14 (concat (range 1 22) (range 33 49)))))
  (is (= [:no-prefix] (errors 13 14 (concat (range 1 17) (range 33 49))))
      "later numbers, and what was there before them is not")
  (is (= [] (map (comp first :error)
                 (prefix/judge-snapshots [] [{:name "s", :from 0, :by 1, :seen {}}])))))

(deftest many-snapshots-are-judged-each-by-itself
  (let [snapshot (fn [name from by numbers]
                   {:name name, :from from, :by by, :seen (contents numbers)})]
    (is (= ["b"] (map :snapshot
                      (prefix/judge-snapshots
                        batches
                        [(snapshot "c" 13 14 (concat (range 1 22) (range 33 49)))
                         (snapshot "b" 2 4 (remove #{7} (range 1 19)))
                         (snapshot "a" 2 4 (range 1 18))]))))))

(defn- snapshot [name & numbers-of-each]
  {:name name, :seen (mapv contents numbers-of-each)})

(deftest what-was-acknowledged-before-another-began-is-in-every-snapshot-of-the-other
  (let [batches {; 1-16 acknowledged at 5; 17-32 at 30.
                 0 [{:numbers (range 1 17), :from 0, :by 5}
                    {:numbers (range 17 33), :from 20, :by 30}]
                 ; 1-16 begun after the first of those and before the second, never answered.
                 1 [{:numbers (range 1 17), :from 10, :by nil}]
                 2 []}
        errors  (fn [& numbers-of-each]
                  (map (juxt :writer (comp first :error))
                       (prefix/judge-between batches
                                             [(apply snapshot "s" numbers-of-each)])))
        missed  :misses-what-was-acknowledged-before-another-began]
    (is (= [[0 missed]] (errors [] (range 1 6) []))
        "a block of the second writer, without what the first had before it")
    (is (= [[0 missed]] (errors (range 1 16) (range 1 2) []))
        "without all of it")
    (is (= [] (errors (range 1 17) (range 1 6) [])))
    (is (= [] (errors (range 1 33) (range 1 6) [])) "more than needed")
    (is (= [] (errors (range 1 16) [] [])) "a part of one batch, and nothing later")
    (is (= [] (errors (range 1 18) [] []))
        "what was never answered need not be there, however early it was begun")
    (is (= [] (errors [] [] [])))
    (testing "which is what each writer's own prefix does not show"
      (is (= [] (for [w [0 1]
                      error (prefix/judge-snapshots
                              (batches w)
                              [{:name "s", :from 1, :by 40
                                :seen (contents (nth [[] (range 1 6)] w))}])]
                  error))))))

(deftest overwritten-by-a-later-one-of-its-writer-is-there
  (let [round   (* prefix/volumes prefix/slots)
        ; The second writer began when the first had gone once round.
        batches {0 (for [n (range 0 (* 2 round) 16)]
                     {:numbers (range (inc n) (+ n 17)), :from n, :by (inc n)})
                 1 [{:numbers (range 1 17), :from (+ round 2), :by (+ round 20)}]}]
    (is (= [] (prefix/judge-between batches [(snapshot "s" (range 1 (+ 33 round)) [1])])))
    (is (= [0] (map :writer (prefix/judge-between
                              batches [(snapshot "s" (range 1 round) [1])]))))))

(deftest many-writes-between-writers-are-judged-soon
  (let [per-writer 5000 ; in all, more than a run of five minutes makes
        writers    12
        ; One batch of a writer after another, round and round.
        batches    (into {} (for [w (range writers)]
                              [w (vec (for [b (range (quot per-writer 16))
                                            :let [t (* 10 (+ w (* writers b)))]]
                                        {:numbers (range (inc (* 16 b)) (inc (* 16 (inc b))))
                                         :from t, :by (+ 5 t)}))]))
        there      (fn [b w] (range (max 1 (- (* 16 b) 200))
                                    (inc (* 16 (if (<= w 5) (inc b) b)))))
        good       (for [b (range 1 300 3)]
                     (apply snapshot (str "s" b) (map #(there b %) (range writers))))
        bad        (update (last good) :seen assoc 2 {})
        begun      (System/nanoTime)]
    (is (= [] (prefix/judge-between batches good)))
    (is (= [2] (map :writer (prefix/judge-between batches [bad]))))
    (is (< (/ (- (System/nanoTime) begun) 1e9) 20))))

(defn -main [& _]
  (let [{:keys [fail error test]} (run-tests 'jepsen.holdfast.prefix-test)]
    (shutdown-agents)
    (System/exit (if (and (pos? test) (zero? (+ fail error))) 0 1))))
