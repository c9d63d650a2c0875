(ns jepsen.holdfast.hand
  "Histories made by hand: what clients and the nemesis did, and at which second."
  (:require [jepsen.history :as h]))

(defn- nanos [s] (long (* s 1000000000)))

(defn client
  "An operation of client `process`: asked for at second `s`, over a tenth later."
  [s process f type' value & {:as more}]
  [{:time (nanos s), :process process, :type :invoke, :f f, :value (:asked more)}
   (merge {:time (nanos (+ s 0.1)), :process process, :type type', :f f, :value value}
          (dissoc more :asked))])

(defn nemesis
  "One operation of the nemesis, `lasts` seconds long; `done` is its completion."
  [s f lasts done]
  (let [op {:process :nemesis, :type :info, :f f}]
    [(assoc op :time (nanos s), :value (:asked done))
     (merge op {:time (nanos (+ s lasts))} (dissoc done :asked))]))

(defn all-well
  "The end of a run from second `s` on: everything is put right, then `reads`, and all
  gateways run, but for those of `down`."
  [s reads & {:keys [end alive] :or {end {:served? true}
                                     alive {:value {"g1" true, "g2" true, "g3" true}}}}]
  [(nemesis s :end 0.5 end) reads (nemesis (+ s 100) :alive 0.5 alive)])

(defn history
  "Of these operations, however deep in lists, by time."
  [& parts]
  (->> (flatten parts)
       (sort-by :time)
       (map-indexed (fn [i op] (assoc op :index i)))
       h/history))
